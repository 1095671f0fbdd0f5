"""How each trainer calls a reward function: one entry per adapter, checked against the contract."""

import asyncio
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpo_guard import CompletionVerifier, Guard, Policy
from grpo_guard.adapters.areal import ArealAdapter
from grpo_guard.adapters.ms_swift import MsSwiftAdapter
from grpo_guard.adapters.openrlhf.reward import OpenRLHFAdapter
from grpo_guard.adapters.slime import SlimeAdapter
from grpo_guard.adapters.trl.reward import TRLAdapter
from grpo_guard.adapters.verifiers import VerifiersAdapter
from grpo_guard.adapters.verl.reward import VerlAdapter
from grpo_guard.core.verdict import Cause, Verdict, abstain, accept, reject
from tests.helpers.characters import END, Characters

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PROMPT = "3+4?"
QUESTION = {"question": PROMPT}


@dataclass(frozen=True)
class Trainer:
    """One trainer's calling convention, and what it can do.

    Args:
        adapter: Class of the adapter.
        arguments: Builds the arguments of one call, in the trainer's order, from a text or
        (``batch``) a list.
        texts: Name of the argument that holds the completion or completions.
        reads: Extracts the text from the trainer's object for a completion.
        key: Key of the reward in a dict that the reward function returns; None = no dicts.
        any_key: Every key of the dict holds a reward.
        batch: One call gets the whole batch; otherwise one completion.
        positional: The arguments have no names.
        drops: The trainer leaves a completion out of its group if its reward is None.
        several: It takes a list of reward functions and adds up what they return.
        awaits: It awaits async reward functions.
        raises: An exception stops the run; otherwise the adapter returns 0 and logs an error.
        finite: None, NaN and infinities must not reach it; they become 0.
        reject_rate: Reads the logged share of rejections; None = the trainer has no place for
        metrics.
    """

    adapter: Callable[[], Any]
    arguments: Callable[[Any], dict[str, Any]]
    texts: str
    reads: Callable[[Any], str] = str
    key: str | None = None
    any_key: bool = False
    batch: bool = False
    positional: bool = False
    drops: bool = False
    several: bool = False
    awaits: bool = False
    raises: bool = True
    finite: bool = False
    reject_rate: Callable[[Any], float] | None = None

    def wrap(
        self,
        reward: Any,
        verifier: CompletionVerifier | None = None,
        policy: Policy | None = None,
        **more: Any,
    ) -> Any:
        """Return the guarded reward; the default policy is one that every trainer supports."""
        policy = policy or Policy("zero", "zero")
        more = {"tokenizer": Characters()} | more
        return self.adapter().wrap(reward, Guard(verifier or Words(), policy=policy, **more))

    def calls(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the arguments of each call that the trainer makes for these completions."""
        parts = [list(texts)] if self.batch else texts
        return [self.arguments(part) for part in parts]

    def call(self, function: Any, given: Mapping[str, Any]) -> Any:
        """Call the function and return its result, awaited if necessary."""
        answer = function(*given.values()) if self.positional else function(**given)
        return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

    def rewards(self, function: Any, texts: Sequence[str]) -> list[Any]:
        """Return one reward per completion, as the trainer receives them."""
        answers = [self.call(function, given) for given in self.calls(texts)]
        return [value for answer in answers for value in self.values(answer)]

    def values(self, answer: Any) -> list[Any]:
        if isinstance(answer, Mapping):
            assert self.key is not None
            answer = answer[self.key]
        answer = getattr(answer, "reward", answer)
        return answer if isinstance(answer, list) else [answer]

    def texts_in(self, given: Mapping[str, Any]) -> list[str]:
        """Return the completions as the reward function finds them among its arguments."""
        found = given[self.texts]
        rows = found if isinstance(found, list) else [found]
        return [self.reads(row).removeprefix(PROMPT) for row in rows]


async def _awaited(answer: Any) -> Any:
    return await answer


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Words(CompletionVerifier):
    """Rejects texts with a keyword, abstains on texts with "unseen", records its input."""

    name = "words"

    def __init__(self, word: str = "Hail") -> None:
        self.word = word
        self.shown: list[str] = []

    def verify(self, batch: Sequence[Any]) -> list[Verdict]:
        self.shown += [completion.text for completion in batch]
        return [self._verdict(completion.text) for completion in batch]

    def _verdict(self, text: str) -> Verdict:
        if self.word in text:
            return reject(self.name, message=f"says {self.word}")
        unseen = "unseen" in text
        return abstain(self.name, Cause.UNSUPPORTED) if unseen else accept(self.name)


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _sample(text: str) -> Any:
    """slime's algorithm, as published."""
    status = SimpleNamespace(value="completed")
    said = Characters().encode(text)
    ids = {"tokens": [5, *said], "response_length": len(said), "rollout_log_probs": None}
    more = {"loss_mask": None, "group_index": 0, "label": "7", "metadata": {}, "status": status}
    return SimpleNamespace(prompt=PROMPT, response=text, **ids, **more)


def _log(name: str, value: float) -> None:
    LOGGED[name] = value


def _trace(text: str) -> Any:
    """verifiers' call, with one turn; tests/verifiers covers the real one."""
    asked = SimpleNamespace(role="user", content=PROMPT)
    said = SimpleNamespace(role="assistant", content=text, tool_calls=None)
    nodes = [
        SimpleNamespace(message=asked, sampled=False, parent=None, token_ids=[5], mask=[False]),
        SimpleNamespace(
            message=said,
            sampled=True,
            parent=0,
            token_ids=[*Characters().encode(text), END],
            mask=[True] * (len(text) + 1),
        ),
    ]
    nodes[1].logprobs = [-0.5] * (len(text) + 1)
    task = SimpleNamespace(type="Sums", data=SimpleNamespace(answer="7"))
    return SimpleNamespace(nodes=nodes, info={}, task=task, record_metric=_log)


RLLM = _example("rllm_adapter").RLLMAdapter
LOGGED: dict[str, float] = {}  # what the fake trainer was asked to log
SLIME_ARGS = SimpleNamespace(reward_key="score", eval_reward_key=None)

TRAINERS = {
    "trl": Trainer(
        TRLAdapter,
        lambda t: {
            "prompts": [PROMPT] * len(t),
            "completions": t,
            "completion_ids": [[1, 2] for _ in t],
            "log_metric": LOGGED.__setitem__,
        },
        "completions",
        batch=True,
        drops=True,
        several=True,
        awaits=True,
        reject_rate=lambda answer: LOGGED["guard/reject_rate"],
    ),
    "ms_swift": Trainer(
        MsSwiftAdapter,
        lambda t: {
            "completions": t,
            "messages": [[{"role": "user", "content": PROMPT}, _answer(text)] for text in t],
        },
        "completions",
        batch=True,
        several=True,
        awaits=True,
    ),
    "verl": Trainer(
        VerlAdapter,
        lambda t: {
            "data_source": "sums",
            "solution_str": t,
            "ground_truth": "7",
            "extra_info": {"question": PROMPT},
        },
        "solution_str",
        key="score",
        awaits=True,
        finite=True,
    ),
    "openrlhf": Trainer(
        OpenRLHFAdapter,
        lambda t: {"queries": [PROMPT + t], "prompts": [PROMPT], "labels": ["7"]},
        "queries",
        key="rewards",
        positional=True,
        raises=False,
        finite=True,
        reject_rate=lambda answer: answer["extra_logs"]["guard_reject"],
    ),
    "areal": Trainer(
        ArealAdapter,
        lambda t: {"prompt": PROMPT, "completions": t, "prompt_ids": [1], "completion_ids": [2]},
        "completions",
        positional=True,
        finite=True,
    ),
    "slime": Trainer(
        SlimeAdapter,
        lambda t: {"args": SLIME_ARGS, "sample": _sample(t)},
        "sample",
        reads=lambda sample: sample.response,
        key="score",
        positional=True,
        awaits=True,
    ),
    "slime_group": Trainer(
        SlimeAdapter,
        lambda t: {"args": SLIME_ARGS, "samples": [_sample(text) for text in t]},
        "samples",
        reads=lambda sample: sample.response,
        batch=True,
        positional=True,
        awaits=True,
    ),
    "verifiers": Trainer(
        VerifiersAdapter,
        lambda t: {"trace": _trace(t), "task": SimpleNamespace(answer="7")},
        "trace",
        reads=lambda trace: trace.nodes[-1].message.content,
        any_key=True,
        awaits=True,
        reject_rate=lambda answer: LOGGED["guard/reject_rate"],
    ),
    "rllm": Trainer(RLLM, lambda t: {"task_info": QUESTION, "action": t}, "action"),
}
