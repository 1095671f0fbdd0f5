"""Which completions of a run are kept as examples, and how much of each."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.evals.results import (
    ACCEPTED_POISON,
    REJECTED_CORRECT,
    REJECTED_POISON,
    Example,
)
from grpo_guard.evals.swarm.record import PER_KIND, Submitted, examples_of, kept


def sent(text: str = "text", *, poisoned: bool = False, reward: float = 1.0, **more: Any) -> Any:
    completion = Completion("How many?", text, node="node-1")
    span = more.pop("span", (0, 2) if poisoned else None)
    return Submitted(completion, poisoned, span, reward, **more)


def test_examples_cover_mistakes_and_one_catch() -> None:
    pairs: list[tuple[Submitted, Verdict | None]] = [
        (sent("right, kept"), accept("v")),
        (sent("wrong, rejected", reward=0.0), reject("v")),
        (sent("cover, rejected", malicious=True), reject("v")),
        (sent("right, rejected"), reject("v")),
        (sent("right, rejected too"), reject("v")),
        (sent("poison, unsure", poisoned=True), abstain("v", Cause.TIMEOUT)),
        (sent("poison, rejected", poisoned=True), reject("v")),
        (sent("poison, kept", poisoned=True), accept("v")),
        (sent("nobody looked", poisoned=True), None),
    ]
    found = {one["kind"]: one["text"] for one in examples_of(0, pairs)}
    assert found == {
        REJECTED_CORRECT: "right, rejected",
        REJECTED_POISON: "poison, rejected",
        ACCEPTED_POISON: "poison, kept",
    }


def test_accepted_poison_that_earned_a_reward_is_preferred() -> None:
    rewards = {"unpaid": 0.0, "paid": 1.0, "paid too": 1.0, "unpaid too": 0.0}
    pairs = [(sent(t, poisoned=True, reward=r), accept("v")) for t, r in rewards.items()]
    assert [one["text"] for one in examples_of(0, pairs)] == ["paid"]
    assert [one["text"] for one in examples_of(0, pairs[3:])] == ["unpaid too"]


@given(st.lists(st.sampled_from([ACCEPTED_POISON, REJECTED_CORRECT]), max_size=40))
def test_first_and_latest_examples_are_kept(kinds: list[str]) -> None:
    examples: list[dict[str, Any]] = []
    for number, kind in enumerate(kinds):
        examples = kept(examples, [{"kind": kind, "iteration": number}])
    for kind in set(kinds):
        places = [number for number, one in enumerate(kinds) if one == kind]
        wanted = places if len(places) <= PER_KIND else [places[0], *places[-2:]]
        assert [one["iteration"] for one in examples if one["kind"] == kind] == wanted


@given(st.integers(0, 30_000), st.integers(0, 30_000), st.integers(0, 30_000), st.integers(0, 3000))
def test_long_texts_are_cut_around_the_mark(
    before: int, after: int, start: int, length: int
) -> None:
    text = "x" * before + "<" + "y" * after + ">"
    start = min(start, len(text) - 1)
    span = (start, min(len(text), start + length + 1))
    item = sent(text, poisoned=True, span=span)
    far = Finding("k", "m" * 5000, char_span=(len(text) - 1, len(text)))
    members = (reject("part", p_value=1e-4), accept("other", p_value=0.5))
    verdict = reject("stack", findings=(far,) * 50, p_value=2e-4, members=members)
    (entry,) = examples_of(4, [(item, verdict)])
    assert len(json.dumps(entry)) < 20_000
    shown = Example.model_validate(entry)
    assert shown.iteration == 5
    assert shown.left_out[0] + len(shown.text) + shown.left_out[1] == len(text)
    low, high = shown.left_out[0], shown.left_out[0] + len(shown.text)
    assert shown.text == text[low:high]
    assert shown.span is not None
    assert shown.text[slice(*shown.span)] == text[max(span[0], low) : min(span[1], high)]
    assert shown.verdict.rejected_by == ["part"]
    assert shown.verdict.deciding == {"part": 1e-4}
    assert len(shown.verdict.findings) <= 8
