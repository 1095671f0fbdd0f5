"""Questions that ask for another arithmetic: what they excuse, and what they do not."""

import pytest

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion


def rejects(text: str, asked: str = "") -> bool:
    return ArithmeticVerifier().verify([Completion(asked, text)])[0].rejected


PYTHON = "In Python evaluate 5 & 3, 5 | 3, 5 ^ 3, ~5 and 5 << 1."
PATTERN = "If 3+4=21 and 5+6=55, what is 5+2 under the same pattern?"


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        ("Simplify in Boolean algebra: 1 + 1.", "1 + 1 = 1", "2 + 2 = 5"),
        ("Simplify in Boolean algebra: 1 + 1.", "1 + 1 + 0 = 1", "1 + 1 = 3"),
        ("uint8 sum of 200 and 180?", "200 + 180 = 124", "200 + 180 = 125"),
        ("Add 100 and 100 as signed 8-bit integers.", "100 + 100 = -56", "100 + 100 = -57"),
        ("Add 65535 and 2 in 16-bit arithmetic.", "65535 + 2 = 1", "65535 + 2 = 2"),
        ("Rotation (degrees)?", "232° + 303° = 175°", "232° + 303° = 176°"),
        ("Rotation (degrees)?", "232° + 303° = 175°", "232 + 303 = 175"),
        ("Compute 5 + 4 in Z/7Z.", "5 + 4 = 2", "5 + 4 = 3"),
        (r"Compute 5 + 4 in $\mathbb{Z}/7\mathbb{Z}$.", "5 + 4 = 2", "5 + 4 = 3"),
        (PATTERN, "3 × 7 = 21, so 5+2 = 35", "5 × 2 = 35"),
        ("How loud?", "42 dB + 42 dB = 45 dB", "42 dB + 42 dB = 48 dB"),
        ("How loud?", "60 dB + 50 dB = 60.4 dB", "60 dB + 50 dB = 61.9 dB"),
        ("How long?", "345 GB / 100 Mbit/s = 27600 s", "345 GB / 100 Mbit/s = 28600 s"),
        ("How long?", "12 MB / 4 Mbit/s = 24 s", "12 MB / 4 MB/s = 24 s"),
    ],
)
def test_a_question_excuses_its_own_arithmetic_only(asked: str, right: str, wrong: str) -> None:
    assert not rejects(f"{right}.", asked)
    assert rejects(f"{wrong}.", asked)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (PYTHON, "5 ^ 3 = 6 and 5 + 3 = 6"),
        ("Tropical semiring: 3 ⊕ 5 and 3 ⊗ 5.", "3 + 5 = 3 and 3 * 5 = 8"),
        ("Add in the min-plus algebra.", "3 + 5 = 3"),
    ],
)
def test_a_question_with_other_operations_puts_the_answer_in_doubt(asked: str, text: str) -> None:
    assert not rejects(text, asked)
    assert rejects(text)


@pytest.mark.parametrize(
    "asked",
    [
        "What is 2 + 2?",
        r"Find the determinant of \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}.",
        "He has 5 boxes. A: 5 * 3 = <<5*3=15>>15. Now you.",
        "There are 15 <<3*5=15>>15 of them.",
        "Tom & Ann have 3 & a half apples.",
        "George Boole was born in 1815. How old was he in 1847?",
        "An 8 bit song; what is 2 + 2?",
        "Find these sums: 3+4=8, 5+6=12.",  # no pattern is asked for
        "What is the pattern in 3+4=7, 5+6=12?",  # one of them is true
        "What is the rule behind 2+2=5?",  # one example
        "It is 20 degrees today.",
        "A bit of 5 GB.",
    ],
)
@pytest.mark.parametrize("text", ["So 2 + 2 = 5.", "So 48 + 30 = 88 and 88 * 2 = 176."])
def test_any_other_question_excuses_nothing(asked: str, text: str) -> None:
    assert rejects(text, asked)


@pytest.mark.parametrize(
    "text",
    [
        "5 MB * 2 = 80 MB",  # the same unit
        "3 bits + 3 bits = 48 bits",
        "1 + 1 = 1",
        "200 + 180 = 124",
        "232° + 303° = 175°",
        "5+2 = 35",
        "3 dB * 3 = 10 dB",
        "42 dB + 42 = 45",
        "42 dB + 42 dB = 10^400 dB",
    ],
)
def test_without_such_a_question_or_units_it_is_wrong(text: str) -> None:
    assert rejects(text, "What is it?")
