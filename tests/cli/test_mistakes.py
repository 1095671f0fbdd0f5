"""Common user mistakes: one message gives the location, what was expected, what was found and what
to write instead.
"""

from decimal import Decimal

import numpy as np
import pytest

import grpo_guard
from grpo_guard import (
    AllOf,
    ArithmeticVerifier,
    Completion,
    CompletionVerifier,
    Guard,
    JudgeVerifier,
    Policy,
    SamplingSpec,
    guard,
    presets,
)
from grpo_guard.core.ensemble import Vote, only
from grpo_guard.core.verdict import accept
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS


class Shouting(CompletionVerifier):
    name = "shouting"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]


def reward(completions, **kwargs):
    return [1.0] * len(completions)


def another(completions, **kwargs):
    return [0.0] * len(completions)


class Tokenizer:
    """All of a tokenizer that the checks look at."""

    def convert_tokens_to_ids(self, tokens):
        raise NotImplementedError


SPEC = SamplingSpec("transformers", 1.0, 50, 1.0)
HELLO = Completion("p", "t")


class Learning(Shouting):
    name = "learning"
    scope = "history"


SHOUTING, LEARNING = Shouting(), Learning()
CALLS = {
    "one verifier beside": (
        lambda: presets.different_weights(beside=Shouting()),
        r"beside: expected a list of verifiers, got Shouting; write a list of one as \[Shouting",
    ),
    "a class beside": (
        lambda: presets.different_weights(beside=[Shouting]),
        r"expected a CompletionVerifier, got the class Shouting; write Shouting\(...\)",
    ),
    "a name beside": (
        lambda: presets.different_weights(beside=["screens"]),
        "expected a CompletionVerifier, got 'screens'; names work only in guard files",
    ),
    "a policy's name": (
        lambda: presets.different_weights(policy="drop"),
        r"policy: expected a Policy or None, got 'drop'; write Policy\(on_reject='drop'\)",
    ),
    "a preset's option": (
        lambda: presets.different_weights(lenght=True),
        "different_weights: expected one of .*got 'lenght'; did you mean 'length'?",
    ),
    "text as a switch": (
        lambda: presets.different_weights(length="yes"),
        "length: expected True or False, got 'yes'",
    ),
    "a number as a folder": (
        lambda: presets.different_weights(state=3),
        "state: expected a folder's path, got 3",
    ),
    "a tokenizer's name": (
        lambda: presets.different_weights(tokenizer="gpt2"),
        "tokenizer: expected a tokenizer, got the name 'gpt2'; write Detokenizer.from_pretrained",
    ),
    "no sampler": (
        lambda: presets.same_weights("x", None),
        r"same_weights.sampling: expected a value, got nothing \(the sampling that every node",
    ),
    "a policy's rule for a preset": (
        lambda: presets.different_weights(on_reject="zero"),
        r"different_weights: expected on_reject in a policy, .* policy=Policy\(on_reject='zero'\)",
    ),
    "a preset's misspelt name": (
        lambda: presets.sameweights,
        "no attribute 'sameweights'; the presets are .*; did you mean 'same_weights'?",
    ),
    "a folder with a tokenizer": (
        lambda: presets.same_weights(WORD_PROBLEMS, Tokenizer(), SPEC),
        "tokenizer: expected None with the name of a model.* got a Tokenizer. In training, pass "
        "the model object that is trained",
    ),
    "a path that does not exist, with a tokenizer": (
        lambda: presets.same_weights("./nowhere", Tokenizer(), SPEC),
        "model: expected a model's folder or an id NAME/MODEL, got './nowhere', and it does not",
    ),
    "a tokenizer before the model": (
        lambda: presets.same_weights(Tokenizer(), object(), SPEC),
        r"model: expected a causal language model, got a tokenizer \(Tokenizer\); the order is "
        "model, tokenizer, sampling",
    ),
    "a tokenizer before the reader": (
        lambda: presets.different_weights(Tokenizer(), object()),
        r"model: .*got a tokenizer \(Tokenizer\); the order is model, tokenizer",
    ),
    "a tokenizer for a sampler": (
        lambda: presets.same_weights(object(), SPEC, Tokenizer()),
        "sampling: expected a SamplingSpec, got Tokenizer",
    ),
    "a guard for a reward function": (
        lambda: Guard(Shouting())(prompts=["p"], completions=["t"]),
        r"this guard wraps no reward function, .*completions, prompts: write guard\(reward\), and",
    ),
    "a decorator for a reward function": (
        lambda: guard(Shouting())(prompts=["p"], completions=["t"]),
        r"this guard wraps no reward function.*: write guard\(reward\)",
    ),
    "a guard for a reward function of another trainer": (
        lambda: Guard(Shouting())(["p"], ["t"], ["l"]),
        r"this guard wraps no reward function: write guard\(reward\)",
    ),
    "two reward functions": (
        lambda: Guard(Shouting())(reward, another),
        r"got 2 functions; guard all of them as one list: guard\(\[reward, another\]\)",
    ),
    "a judge's bare name": (
        lambda: JudgeVerifier("openai"),
        "backend: expected a mapping with typ",
    ),
    "a judge without its key": (
        lambda: presets.judged({"type": "openai", "model": "m"}),
        r"backend: expected a key in \$OPENAI_API_KEY, got none; set it, or give base_url",
    ),
    "a switch for a reader": (
        lambda: presets.different_weights(reader=True),
        "reader: expected a model, or its folder or id, got True",
    ),
    "a number for a tokenizer": (
        lambda: Guard(SHOUTING, tokenizer=3),
        "tokenizer: expected a tokenizer, got 3",
    ),
    "ids of a whole batch": (
        lambda: Completion("p", "t", completion_ids=np.ones((1, 3), int)),
        r"completion_ids: expected a list of integers or null, got ndarray of shape",
    ),
    "an option of another verifier": (
        lambda: ArithmeticVerifier(alpha=0.1),
        "ArithmeticVerifier: expected one of .*got 'alpha'",
    ),
    "an option of an ensemble": (
        lambda: AllOf(SHOUTING, alhpa=0.1),
        "AllOf: expected one of alpha, shares, name, got 'alhpa'; did you mean 'alpha'?",
    ),
    "text for a budget": (
        lambda: AllOf(SHOUTING, alpha="0.1"),
        r"AllOf.alpha: expected a number in \(0, 1\), got '0.1'",
    ),
    "text for a number of votes": (
        lambda: Vote(SHOUTING, rejects="1"),
        "Vote.rejects: expected an integer between 1 and 1, got '1'",
    ),
    "a condition of only": (
        lambda: only(SHOUTING, tasks="math"),
        "only: expected one of verifier, task, node, when, got 'tasks'; did you mean 'task'?",
    ),
    "the state of another guard": (
        lambda: presets.different_weights().load_state_dict(Guard(SHOUTING).state_dict()),
        r"state: expected memories ledger, .*\(recurrence\), got .*other verifiers",
    ),
    "texts for completions": (
        lambda: Guard(Shouting()).apply([1.0], ["abc"]),
        r"batch\[0\]: expected a Completion, got 'abc'; write Completion\(...\)",
    ),
    "a row for a completion": (
        lambda: Guard(Shouting()).review([{"prompt": "p", "text": "t"}]),
        r"batch\[0\]: expected a Completion, got dict; write Completion.from_dict\(row\)",
    ),
    "one completion for a batch": (
        lambda: Guard(Shouting()).review(HELLO),
        "batch: expected a list of completions, got Completion",
    ),
    "text for a batch": (
        lambda: Guard(Shouting()).review("abc"),
        "batch: expected a list of completions, got 'abc'",
    ),
    "one number for rewards": (
        lambda: Guard(Shouting()).apply(1.0, [HELLO]),
        "rewards: expected one number or None per completion, in a list, got 1.0",
    ),
    "text for a reward": (
        lambda: Guard(Shouting()).apply(["1"], [HELLO]),
        r"rewards\[0\]: expected a number or None, got '1'",
    ),
    "a list for a reward": (
        lambda: Guard(Shouting()).apply([[1.0]], [HELLO]),
        r"rewards\[0\]: expected a number or None, got list; .*write float",
    ),
    "a column of rewards": (
        lambda: Guard(Shouting()).apply(np.ones((1, 1)), [HELLO]),
        r"rewards: expected one number .*got the shape \[1, 1\]; add up the columns",
    ),
    "an array of texts for rewards": (
        lambda: Guard(Shouting()).apply(np.array(["1"]), [HELLO]),
        r"rewards\[0\]: expected a number or None, got '1'",
    ),
    "a set of rewards": (
        lambda: Guard(Shouting()).apply({1.0}, [HELLO]),
        "rewards: expected one number or None per completion, in a list, got set",
    ),
    "a decimal reward": (
        lambda: Guard(Shouting()).apply([Decimal(1)], [HELLO]),
        r"rewards\[0\]: expected a number or None, got Decimal",
    ),
    "too many rewards": (
        lambda: Guard(Shouting()).apply([1.0, 2.0], [HELLO]),
        "rewards: expected 1, one per completion, got 2",
    ),
    "verdicts for a review": (
        lambda: Guard(Shouting()).settle([1.0], [accept("x")]),
        "review: expected what Guard.review returns, got list",
    ),
    "verifiers for a verifier": (
        lambda: Guard(verifiers=[Shouting]),
        "Guard: expected one of verifier, .*got 'verifiers'; did you mean 'verifier'?",
    ),
    "a guard for a verifier": (
        lambda: guard(Guard(Shouting())),
        "Guard.verifier: .*got a guard, which cannot be part of another; use it alone, or take its",
    ),
    "a guard beside": (
        lambda: presets.different_weights(beside=[Guard(Shouting())]),
        "expected a CompletionVerifier, got a guard",
    ),
    "a verifier twice": (
        lambda: LEARNING & LEARNING,
        "AllOf: expected each verifier once, got the same 'learning' twice; leave one out",
    ),
    "a class behind &": (
        lambda: SHOUTING & Shouting,
        r"AllOf: expected .*got the class Shouting; write Shouting\(...\)",
    ),
    "a task's name as a condition": (
        lambda: only(SHOUTING, when="math"),
        "only.when: expected a function of a completion, got 'math'",
    ),
    "a ledger's path": (
        lambda: Guard(SHOUTING, ledger="nodes.sqlite"),
        r"Guard.ledger: expected None or EvidenceLedger\(PATH\), got 'nodes.sqlite'",
    ),
    "references in a mapping": (
        lambda: Guard(SHOUTING, references={"p": "a"}),
        r"Guard.references: expected None or References\(\{prompt: answer\}\)",
    ),
    "failures switched on": (
        lambda: Guard(SHOUTING, failures=True),
        r"Guard.failures: expected None or GraderFailures\(...\), got True",
    ),
    "a log in no folder": (
        lambda: Guard(SHOUTING, log="/dev/null/runs/log.jsonl"),
        r"log: expected a file .*in a folder that does not exist and cannot be made \(Not a dir",
    ),
    "a log with an impossible name": (
        lambda: Guard(SHOUTING, log=f"/tmp/{'x' * 300}/log.jsonl"),
        r"log: expected a file .*, which cannot be written \(File name too long\)",
    ),
    "a folder for a log": (
        lambda: Guard(SHOUTING, log="/"),
        "log: expected a file to append verdicts to, got /, which is a folder; name a file",
    ),
    "a log at home": (
        lambda: Guard(SHOUTING, log="~/logs/log.jsonl"),
        "log: .*got ~/logs/log.jsonl, .*; ~ is not expanded, write the whole path",
    ),
    "a state at home": (
        lambda: presets.different_weights(state="~/state"),
        "state: expected a folder's path, got '~/state'; ~ is not expanded, write the whole path",
    ),
    "a class for a verifier": (
        lambda: Guard(Shouting),
        r"Guard.verifier: expected a CompletionVerifier, got the class Shouting; write Shouting\(",
    ),
    "a list for a verifier": (
        lambda: Guard([Shouting()]),
        r"Guard.verifier: expected .*got a list; write AllOf\(\*verifiers\)",
    ),
    "a list in an ensemble": (
        lambda: AllOf([Shouting(), Shouting()]),
        r"AllOf: expected a CompletionVerifier, got a list; write AllOf\(\*verifiers\)",
    ),
    "a function among verifiers": (
        lambda: presets.different_weights(beside=[reward]),
        "got the function 'reward'; write a subclass of CompletionVerifier whose verify",
    ),
    "a class in a restriction": (lambda: only(Shouting, task="x"), "got the class Shouting; write"),
    "a decorator without a verifier": (
        lambda: guard(reward),
        "Guard.verifier: expected .*got the function 'reward'; give the verifier to the decorator",
    ),
    "a policy in a mapping": (
        lambda: Guard(Shouting(), policy={"on_reject": "drop"}),
        r"Guard.policy: expected a Policy or None, got dict; write Policy\(\*\*...\)",
    ),
    "a policy's rule": (
        lambda: Policy(on_reject="nogain"),
        "Policy.on_reject: expected .*got 'nogain'; did you mean 'no_gain'?",
    ),
    "a policy's option": (
        lambda: Policy(on_rejct="drop"),
        "Policy: expected one of .*got 'on_rejct'; did you mean 'on_reject'?",
    ),
    "a share in per cent": (
        lambda: Policy(max_abstain_rate=25),
        r"Policy.max_abstain_rate: expected a number in \[0, 1\], got 25",
    ),
    "half a sampler": (
        lambda: SamplingSpec("vllm"),
        r"SamplingSpec.temperature: expected a value, got nothing \(the sampler's temp",
    ),
    "a greedy sampler": (
        lambda: SamplingSpec("vllm", 0.0, 0, 1.0),
        r"SamplingSpec.temperature: expected a finite number > 0 \(greedy decoding is top_k=1\)",
    ),
    "a kind of finding": (
        lambda: ArithmeticVerifier(severity={"wrong-equation": "report"}),
        "severity: expected one of .*did you mean 'wrong_equation'?",
    ),
    "a trainer": (
        lambda: guard(Shouting(), framework="trll")(reward),
        "framework: expected one of .*got 'trll'; did you mean 'trl'?",
    ),
    "a name of the package": (
        lambda: grpo_guard.Gaurd,
        "no attribute 'Gaurd'; did you mean 'guard'",
    ),
}


@pytest.fixture(autouse=True)
def _no_judge(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("case", CALLS)
def test_mistakes_in_a_call(case):
    call, said = CALLS[case]
    with pytest.raises((TypeError, ValueError, AttributeError, LookupError), match=said) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "preset", ["same_weights", "shared_seed", "different_weights", "judged", "failures_only"]
)
def test_preset_passed_without_calling_it(preset):
    said = rf"expected options in brackets, got the function 'reward'; write @presets.{preset}\("
    with pytest.raises(TypeError, match=said):
        getattr(presets, preset)(reward)
