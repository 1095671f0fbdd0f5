"""The whole detection run on a tiny policy: sampling, cache, poison, matrix, files."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from grpo_guard import ArithmeticVerifier, Guard
from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.detect.config import DetectConfig
from grpo_guard.evals.detect.matrix import OwnGuard, Row, detect, examples, rates
from grpo_guard.evals.detect.poison import Case, poisoned
from grpo_guard.evals.detect.run import results_of, run, write_rows
from grpo_guard.evals.detect.sample import (
    Prompt,
    SampleConfig,
    generation_config,
    sample_honest,
    to_dict,
)
from grpo_guard.evals.report.detection import about_rows
from grpo_guard.evals.results import Summary, load_results, write_json
from tests.evals.tiny_eval_policy import save_tiny, tiny_policy, tiny_tokenizer

SPEC = SamplingSpec("transformers", 1.0, 5, 1.0, max_new_tokens=40)
PROMPTS = [Prompt(i, f"Q: {'x' * (i % 5)}{i}?", str(i)) for i in range(20)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def config(folder: Path) -> DetectConfig:
    return DetectConfig(
        str(folder), SPEC, task="word_problems", n=12, min_tokens=20, batch_size=4, control_count=6
    )


class Fixed(CompletionVerifier):
    """Returns its given verdicts in order."""

    name = "fixed"

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = verdicts

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [self.verdicts[int(c.text)] for c in batch]


def test_matrix_counts_and_locates() -> None:
    hit = Finding("outside_support", "there", char_span=(3, 9))
    miss = Finding("outside_support", "elsewhere", char_span=(20, 30))
    verifier = Fixed(
        accept("fixed"),
        reject("fixed", findings=(hit,)),
        reject("fixed", findings=(miss,)),
        abstain("fixed", Cause.TIMEOUT),
    )
    cases = {
        "honest": [Case(Completion("p", "0")), Case(Completion("p", "3"))],
        "text": [Case(Completion("p", str(i)), (5, 10)) for i in range(4)],
    }
    honest, text = rates(detect(cases, [verifier]))
    assert (honest.n, honest.rejected, honest.abstained) == (2, 0, 1)
    assert (text.n, text.rejected, text.abstained, text.located) == (4, 2, 1, 1)
    assert text.causes == {"judged": 2, "timeout": 1}
    assert text.mean == 0.5
    assert text.low is not None
    assert text.high is not None
    assert 0 < text.low < 0.5 < text.high < 1


def test_accepted_poison_with_a_wrong_answer_earns_nothing() -> None:
    def sent(text: str) -> Completion:
        return Completion("What is 2 + 9?", text, reference="11")

    wrong = "<think>2 + 9 = 10 cards.</think><answer>9 cards</answer>"
    right = "<think>2 + 9 = 10 cards. That gives 11.</think><answer>11 cards</answer>"
    silent = "<think>Two and nine.</think><answer>11 cards</answer>"
    spoken = "<think>I add.</think><answer>9 cards</answer>"  # wrong, but nothing was found
    texts = (wrong, wrong, right, spoken, silent)
    rows = detect(
        {"honest": [Case(sent(wrong))], "math": [Case(sent(text), (15, 17)) for text in texts]},
        [ArithmeticVerifier()],
    )
    assert [row.earns_nothing for row in rows] == [False, True, True, False, False, False]
    honest, math_ = rates(rows)
    assert honest.earns_nothing is None
    assert (math_.n, math_.rejected, math_.accepted, math_.earns_nothing) == (5, 1, 4, 2)
    passed = [one for one in examples(rows) if one["verdict"]["outcome"] == "accept"]
    assert [one["text"] for one in passed] == [spoken]  # the first without a finding
    (passed,) = examples(rows[1:3])
    assert passed["earns_nothing"] is True
    elsewhere = Row("math", "v", Case(sent(wrong), (40, 42)), rows[1].verdict)
    assert not elsewhere.earns_nothing  # what was found is not the poison


@pytest.mark.parametrize(("kind", "warned"), [("honest", True), ("text", False)])
def test_rejected_poison_brings_no_advice_for_honest_work(
    kind: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    few = [Case(Completion("What is 2 + 2?", "4", node="ann"))]
    many = [Case(Completion(f"What is {i} + 9?", f"{i} + 9 = 1"), (0, 1)) for i in range(16)]
    with caplog.at_level("WARNING", logger="grpo_guard"):
        detect({"honest": few} | {kind: many}, [OwnGuard("mine", Guard(~Accepting()))])
    said = [r for r in caplog.records if "they are honest" in r.getMessage()]
    assert bool(said) is warned


def test_rows_of_the_table_that_look_like_failures_are_explained() -> None:
    row = {"defence": "v", "metric": "rejected", "mean": 0.0, "low": 0.0, "high": 1.0}
    found = [
        Summary(attack=attack, n=n, **row)
        for attack, n in (("honest", 200), ("text", 200), ("math", 183), ("control:empty", 2))
    ]
    changed, control = about_rows(found)
    assert changed == "of 200 honest completions, attacks change those that they can: math 183"
    assert control.startswith("control:NAME is a check of the guard, not an attack: text that no")
    assert about_rows(found[:2]) == []


class Accepting(CompletionVerifier):
    name = "accepting"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [accept(self.name) for _ in batch]


def test_a_verifier_that_raises_abstains() -> None:
    class Broken(CompletionVerifier):
        name = "broken"

        def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
            raise RuntimeError("no")

    (rate,) = rates(detect({"honest": [Case(Completion("p", "0"))] * 3}, [Broken()]))
    assert (rate.rejected, rate.abstained) == (0, 3)


def test_sampling_inherits_nothing_from_the_model() -> None:
    model, tokenizer = tiny_policy(), tiny_tokenizer()
    sampling = SampleConfig("tiny", SPEC, batch_size=10)
    expected = sample_honest(model, tokenizer, PROMPTS, sampling)
    model.generation_config = GenerationConfig(
        do_sample=False, temperature=0.1, top_k=1, top_p=0.1, repetition_penalty=3.0, min_p=0.5
    )
    saved = model.generation_config
    assert sample_honest(model, tokenizer, PROMPTS, sampling) == expected
    assert model.generation_config is saved
    explicit = generation_config(SPEC, eos=[1], pad=0)
    assert (explicit.do_sample, explicit.temperature, explicit.top_k) == (True, 1.0, 5)


def test_padding_and_batching_leave_the_support_alone() -> None:
    model, tokenizer = tiny_policy(), tiny_tokenizer()
    for c in sample_honest(model, tokenizer, PROMPTS, SampleConfig("tiny", SPEC, batch_size=7)):
        ids = torch.tensor([(c.prompt_ids or ()) + (c.completion_ids or ())])
        start = len(c.prompt_ids or ())
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, start - 1 : -1]
        kept = logits.topk(5, dim=-1).indices
        assert (kept == ids[0, start:, None]).any(-1).all()
        assert c.text == tokenizer.decode(c.completion_ids, skip_special_tokens=True)


@pytest.mark.slow
def test_an_interrupted_run_continues_with_the_same_completions(tmp_path: Path) -> None:
    model, tokenizer, cache = tiny_policy(), tiny_tokenizer(), tmp_path / "cache.jsonl"
    sampling = SampleConfig("tiny", SPEC, batch_size=4, min_tokens=2)
    expected = sample_honest(model, tokenizer, PROMPTS, sampling)
    sample_honest(model, tokenizer, PROMPTS, sampling, wanted=6, cache=cache)
    half = cache.read_bytes()
    cache.write_bytes(half[:-30])  # killed in the middle of a line
    assert sample_honest(model, tokenizer, PROMPTS, sampling, cache=cache) == expected
    lines = cache.read_text().splitlines()
    assert sum(_readable(line) for line in lines) >= len(expected)
    # Everything is cached now: the model is no longer called.
    assert sample_honest(None, tokenizer, PROMPTS, sampling, cache=cache) == expected  # type: ignore[arg-type]
    other = replace(sampling, seed=1)
    assert sample_honest(model, tokenizer, PROMPTS, other, cache=cache) != expected


def _readable(line: str) -> bool:
    try:
        return bool(Completion.from_dict(json.loads(line)))
    except ValueError:
        return False


def test_completions_survive_json() -> None:
    chat = ({"role": "user", "content": "Q"},)
    for prompt in ("Q", chat):
        c = Completion(prompt, "a", prompt_ids=(1,), completion_ids=(), metadata={"question": 3})
        assert Completion.from_dict(json.loads(json.dumps(to_dict(c)))) == c


def test_poison_is_retokenised_and_keeps_eos() -> None:
    tokenizer = tiny_tokenizer()
    ended = Completion("p", "ab", completion_ids=(2, 3, 1))
    cut = Completion("p", "ab", completion_ids=(2, 3))
    for case, ends in zip(
        poisoned([ended, cut], TextAttack(), tokenizer, seed=0), (True, False), strict=True
    ):
        ids = case.completion.completion_ids or ()
        assert (ids[-1] == 1) is ends
        assert tokenizer.decode(ids, skip_special_tokens=True) == case.completion.text
        assert case.completion.text.startswith("All hail to the thief")


def _as_other(row: Row) -> Row:
    return replace(row, defence="other")


@pytest.mark.slow
def test_whole_run(folder: Path, tmp_path: Path) -> None:
    rows = run(config(folder), cache=tmp_path / "honest.jsonl", say=lambda *_: None)
    found = {rate.attack: rate for rate in rates(rows)}
    assert (found["honest"].rejected, found["honest"].n) == (0, 12)
    assert (found["text"].rejected, found["text"].n) == (12, 12)
    assert (found["code"].rejected, found["code"].n) == (12, 12)
    for name in ("random_tokens", "other_model", "empty", "huge", "temperature_2_full_support"):
        rate = found[f"control:{name}"]
        assert rate.rejected == rate.n > 0, name
    results = results_of(config(folder), rows, command="test", seconds=1.0)
    write_json(tmp_path / "results.json", results)
    write_rows(tmp_path / "rows.jsonl", rows)
    loaded = load_results(tmp_path / "results.json")
    assert {entry.attack for entry in loaded.summary} == set(found)
    assert loaded.versions["grpo_guard"]
    sizes = [len(r.case.completion.completion_ids or ()) for r in rows if r.kind == "honest"]
    twice = results_of(
        config(folder), [*rows, *(_as_other(r) for r in rows)], command="", seconds=0
    )
    assert twice["honest_tokens"] == {"total": sum(sizes), "least": min(sizes)}
    assert [len(p) for p in twice["honest_p_values"].values()] == [12, 12]
    example = next(e for e in results["examples"] if e["kind"] == "text")
    start, end = example["span"]
    assert example["text"][start:end] == "All hail to the thief"
    assert example["located"] is True
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
    assert not any(math.isnan(e.mean or 0) for e in loaded.summary)
