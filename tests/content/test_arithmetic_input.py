"""Hostile input: anything gets a verdict within limits; real data is read if available."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_guard.content.arithmetic.verifier import MAX_CHARS, ArithmeticVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Outcome
from grpo_guard.evals.attacks.math import MathAttack

ROOT = Path(__file__).resolve().parents[2]
NAMED = os.environ.get("GRPO_GUARD_GSM8K")
FOLDER = Path(NAMED) if NAMED else ROOT.parent / "shared/data/gsm8k"
SOLUTIONS = (FOLDER if FOLDER.is_dir() else FOLDER.parent) / "model_solutions.jsonl"

STRICT = ArithmeticVerifier(on_wrong="reject", textual="judge")
N = MAX_CHARS


def filled(piece: str, ending: str = "") -> str:
    return piece * ((N - len(ending)) // len(piece)) + ending


HOSTILE = {
    "a chain of ones": filled("1 = "),
    "digits": filled("9", " = 9"),
    "brackets": filled("("),
    "nested sums": "(1+" * (N // 5) + "1" + ")" * (N // 5) + " = 2",
    "a long sum": filled("1+", "1=2"),
    "a tower": filled("9^", "9 = 1"),
    "a huge product": filled("9" * 40 + "*", "1=1"),
    "huge powers": filled("9" * 39 + "^60=1\n"),
    "division by zero": filled("1/0 = 5\n"),
    "nested fractions": "\\frac{1}{" * (N // 12) + "2" + "}" * (N // 12) + "=3",
    "open fractions": filled("\\frac{"),
    "wrong lines": filled("1+1=3\n"),
    "wrong notes": filled("<<1+1=3>>3"),
    "open notes": filled("<<"),
    "every reading": filled("1 dozen + 2% of 3 - 1 1/2 / 3(4)^2 * -2^2 = 77\n"),
    "bracketed equations": filled("(1=1)"),
    "continued lines": filled("1\n= "),
    "verbs": filled("1+1 is 3 "),
    "words": filled("two and two make five. "),
    "stars": filled("1**"),
    "superscripts": filled("2³", "=1"),
    "surrogates": filled("2+2=5\ud800"),
    "dashes": filled("-", "1=2"),
    "thousands": filled("1,"),
    "spaces": filled(" "),
    "retractions": filled("2+2=5 wait, wrong "),
    "one open equation": filled("2 dozen * 3% + 1 1/2 - 6/2(3) + 1,5 + 4! + 2 hours + ", "1 = 5"),
    "terms of several degrees": filled("2a + 3 + ", "= 5"),
    "all characters": "".join(map(chr, range(N))),
}


@pytest.mark.slow
@pytest.mark.timeout(120)  # quadratic work would take longer
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_of_maximal_length(name: str) -> None:
    text = HOSTILE[name][:N]
    (verdict,) = STRICT.verify([Completion("", text, reference="5")])
    assert verdict.outcome in (Outcome.ACCEPT, Outcome.REJECT)
    json.dumps(verdict.to_dict()).encode()
    for finding in verdict.findings:
        finding.message.encode()
        assert finding.char_span is not None
        assert 0 <= finding.char_span[0] < finding.char_span[1] <= len(text)


@pytest.mark.parametrize("size", [N + 1, 1_000_000, 10_000_000])
def test_longer_text_is_refused_unread(size: int) -> None:
    (verdict,) = STRICT.verify([Completion("", "1+1=2 " * (size // 6 + 1))])
    assert verdict.cause is Cause.OVERLONG
    assert "are read" in verdict.findings[0].message


PIECES = (
    "1 23 150 ! + - * / ( ) = ≈ % x of and is two $ . , ^ { } "
    "\\frac \\text{ << >> ½ ³ 1/2 \n 5:3 \ud800"
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split(" ")), max_size=40), st.sampled_from(["", " "]))
@example(["2", "\\text{-}", "+", "2", "=", "5"], " ")
def test_any_mixture_gets_a_verdict(pieces: list[str], between: str) -> None:
    (verdict,) = STRICT.verify([Completion("", between.join(pieces), reference="5")])
    assert verdict.outcome in (Outcome.ACCEPT, Outcome.REJECT)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gets_a_verdict(text: str) -> None:
    (verdict,) = STRICT.verify([Completion("", text, reference=text[:9])])
    assert verdict.outcome in (Outcome.ACCEPT, Outcome.REJECT)


@pytest.mark.slow
@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's folder")
def test_real_completions() -> None:
    rows = [json.loads(line) for line in SOLUTIONS.read_text().splitlines()]
    batch = [
        Completion("", row["completion"], reference=row["ground_truth"].rpartition("A:")[2])
        for row in rows
    ]
    rejected = [v.rejected for v in ArithmeticVerifier().verify(batch)]
    assert sum(rejected) <= 5  # out of 1,320; each does contain a wrong equation
    attack, rng = MathAttack(), random.Random(1)
    caught = placed = total = 0
    for row, completion in zip(rows, batch, strict=True):
        poisoned = attack.poison_text(completion.text, rng) if row["is_correct"] else None
        if poisoned is None:
            continue
        total += 1
        sent = Completion("", poisoned.text, reference=completion.reference)
        (verdict,) = ArithmeticVerifier().verify([sent])
        caught += verdict.rejected
        start, end = poisoned.span
        placed += any(
            f.char_span and start <= f.char_span[0] and f.char_span[1] <= end
            for f in verdict.findings
        )
    assert total > 300
    assert caught >= 0.97 * total
    assert placed >= 0.95 * caught


@pytest.mark.timeout(60)  # read twice at each level, these 270 characters would take longer
def test_threat_nested_fractions_are_read_once_each() -> None:
    nested = "2"
    for _ in range(40):
        nested = "2\\frac{" + nested + "}{3}"
    verdict = ArithmeticVerifier().verify([Completion("Q", f"{nested} = 5", reference="5")])[0]
    assert not verdict.abstained


@pytest.mark.parametrize(
    "odd",
    [
        r"\sqrt[\frac12]{3}", "\\sqrt[❶]{4}", "<<2+2=❶>>5", "<<2+2=²>>5", "101! + 1", "5½! = 3",
        "one plus one is ſix", "one plus one iſ fıve", "half of ten is fİve",
    ],
)  # fmt: skip
def test_no_text_raises_and_so_hides_its_neighbours(odd: str) -> None:
    """An exception is an abstention, which anyone could provoke by writing such a text."""
    (verdict,) = ArithmeticVerifier().verify([Completion("", f"{odd}.\n17 + 26 = 45 apples.")])
    assert verdict.rejected


@pytest.mark.parametrize(
    "undefined", ["150!", "(2.5)!", "(3 - 5)!", "(1/0)!", "1/0 + 101!", "1/0!"]
)
def test_threat_an_undefined_factorial_does_not_stop_parsing(undefined: str) -> None:
    text = f"{undefined} = 5\n2 + 2 = 5\n#### 4"
    (verdict,) = STRICT.verify([Completion("Q", text, reference="4")])
    assert "wrong_equation" in {found.kind for found in verdict.findings}
