"""A guard with the task's own references uses no others and reports what was sent instead."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo_guard.content.answers import same_answer
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import InputError
from grpo_guard.core.verdict import Cause, Verdict, accept
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.references import References
from grpo_guard.guard.settlement import Ruling, ruling_of

OURS = {"What is 70 + 2?": "72"}


class Seeing(CompletionVerifier):
    """Accepts everything and records its input."""

    name = "seeing"

    def __init__(self) -> None:
        self.references: list[str | None] = []

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        self.references += [c.reference for c in batch]
        return [accept(self.name) for _ in batch]


def judged(theirs: str | None, prompt: str = "What is 70 + 2?") -> tuple[Verdict, list[str | None]]:
    seeing = Seeing()
    guard = Guard(seeing, references=References(OURS))
    review = guard.review([Completion(prompt, "It is 72.", reference=theirs)])
    return review.verdicts[0], seeing.references


def test_false_reference_rejects_before_any_verifier() -> None:
    verdict, seen = judged("73")
    assert verdict.rejected
    assert verdict.cause is Cause.FALSE_REFERENCE
    assert [f.kind for f in verdict.findings] == ["forged_reference"]
    assert seen == []


@pytest.mark.parametrize(
    "theirs",
    [
        "72",
        "72.0",
        " 72 ",
        r"\boxed{72}",
        "#### 72",
        "$72",
        "72 apples",
        "７２",
        "The answer is 72.",
    ],
)
def test_same_answer_in_another_notation_is_honest(theirs: str) -> None:
    verdict, seen = judged(theirs)
    assert verdict.accepted
    assert not verdict.findings
    assert seen == ["72"]


@pytest.mark.parametrize("theirs", ["seventy-two", "72,5 or so", "x", "4320 minutes"])
def test_incomparable_reference_is_reported_and_unused(theirs: str) -> None:
    verdict, seen = judged(theirs)
    assert verdict.accepted
    assert [f.kind for f in verdict.findings] == ["other_reference"]
    assert seen == ["72"]


def test_sent_reference_is_unused_without_our_own() -> None:
    verdict, seen = judged("72", "What is 70  + 2?")
    assert verdict.accepted
    assert [f.kind for f in verdict.findings] == ["no_reference"]
    assert seen == [None]


def test_missing_reference_is_filled_in() -> None:
    verdict, seen = judged(None)
    assert verdict.accepted
    assert not verdict.findings
    assert seen == ["72"]


def test_right_work_does_not_lose_because_of_a_false_reference() -> None:
    """Under "no_gain" a rejected row may stay and lose; here its reward means nothing."""
    verdict, _ = judged("73")
    assert ruling_of(verdict) is Ruling.BARRED
    guard = Guard(Seeing(), policy=Policy(on_reject="no_gain"), references=References(OURS))
    right = [Completion("What is 70 + 2?", f"72{'.' * i}", reference="73") for i in range(3)]
    wrong = [Completion("What is 70 + 2?", "73", reference="72")]
    assert guard.apply([0.0, 0.0, 0.0, 0.0], [*right, *wrong]) == [None, None, None, 0.0]


def test_wrong_equation_cannot_hide_behind_a_false_reference() -> None:
    """`wrong_equation` rejects only next to a right answer; a false reference would prevent it."""
    poison = Completion("What is 70 + 2?", "2 + 2 = 5, and 70 + 2 = 72. #### 72", reference="8e9")
    # As without references.
    assert not Guard(ArithmeticVerifier()).review([poison]).verdicts[0].rejected
    guarded = Guard(ArithmeticVerifier(), references=References(OURS))
    assert guarded.review([poison]).verdicts[0].rejected


def test_no_references_change_nothing() -> None:
    seeing = Seeing()
    Guard(seeing).review([Completion("What is 70 + 2?", "72", reference="73")])
    assert seeing.references == ["73"]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("1000", "1.000"), ("1.000", "1000"), ("1,234", "1.234"), ("2.5", "2,5")]
)
def test_decimal_comma_is_not_a_forgery(ours: str, theirs: str) -> None:
    assert same_answer(ours, theirs) is not False


def test_same_answer_is_distinguished_from_others() -> None:
    assert same_answer("1000", "1e3") is True
    assert same_answer("0.5", r"\frac{1}{2}") is True
    assert same_answer("7", "8") is False
    assert same_answer("1000", "1.500") is False
    assert same_answer("#### 7", r"\boxed{8}") is False
    assert same_answer("Paris", "paris") is True
    assert same_answer("Paris", "Rome") is None


def test_reference_files(tmp_path: Path) -> None:
    lines = tmp_path / "gsm8k.jsonl"
    rows = [
        {"prompt": "a", "answer": 72, "split": "test"},
        {"prompt": [{"role": "user", "content": "b"}], "reference": "x"},
    ]
    lines.write_text("\n".join(map(json.dumps, rows)))
    found = References.from_file(lines)
    assert (found.of("a"), found.of("c")) == ("72", None)
    assert found.of([{"role": "user", "content": "b"}]) == "x"
    mapping = tmp_path / "own.yaml"
    mapping.write_text("a: 72\n'b c': \"1/2\"\n")
    assert References.from_file(mapping).of("b c") == "1/2"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.jsonl", '{"prompt": "a"}', "a.jsonl:1: reference: expected text or a number"),
        ("a.jsonl", '{"answer": "a"}', "a.jsonl:1: prompt: expected a string"),
        (
            "a.jsonl",
            '{"prompt": "a", "answer": "1"}\n{"prompt": "a", "answer": "2"}',
            "a.jsonl:2: prompt: expected one answer for each, got two",
        ),
        ("a.yaml", "- a", "a.yaml: (file): expected a mapping"),
        ("a.yaml", "a: true", "a.yaml: reference: expected text or a number"),
        ("a.yaml", "a: [", "a.yaml: (file): expected readable YAML"),
    ],
)
def test_invalid_file_names_the_line(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as raised:
        References.from_file(tmp_path / name)
    assert problem in str(raised.value)
