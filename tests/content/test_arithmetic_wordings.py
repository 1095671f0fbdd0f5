"""Calculations in other words, in columns, with the result first, and solved equations."""

import pytest

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion

# A statement, its value, and a wrong value.
STATED = [
    ("Doubling 40 gives {}", 80, 81),
    ("Tripling 4 yields {}", 12, 13),
    ("Halving 40 leaves {}", 20, 21),
    ("Thrice 4 is {}", 12, 13),
    ("A fifth of 30 is {}", 6, 7),
    ("Two thirds of 30 is {}", 20, 21),
    ("The square of 7 is {}", 49, 50),
    ("The cube of 3 is {}", 27, 28),
    ("The average of 4 and 8 is {}", 6, 7),
    ("Subtracting 5 from 20 leaves {}", 15, 14),
    ("Taking 5 cows from 20 cows leaves {}", 15, 14),
    ("Adding 5 to 20 produces {}", 25, 26),
    ("Combining 5 and 20 results in {}", 25, 26),
    ("5 more than 20 is {}", 25, 26),
    ("5 less than 20 is {}", 15, 14),
    ("{} is the sum of 20 and 5", 25, 26),
    ("{} equals the product of 20 and 5", 100, 90),
    ("{} is the difference between 20 and 5", 15, 16),
    ("3 hours is {} minutes", 180, 250),
    ("2 dollars are {} cents", 200, 300),
    ("  42\n+ 31\n----\n  {}", 73, 74),
    ("  42\n  10\n+ 31\n====\n  {}", 83, 84),
    ("  4.2\n- 3.1\n-----\n  {}", 1.1, 1.2),
    ("  42\nx  2\n----\n  {}", 84, 85),
    ("If x + 2 = 8, then x = {}.", 6, 7),
    ("3y - 1.5 = 9\ny = {}", 3.5, 4.5),
    ("$2n = 5$, so $n = {}$", "5/2", "3/2"),
    (r"4x = 10 \implies x = {}", 2.5, 2),
]
# "20 minus 5" is a calculation in signs or in plain words, whose error rejects.
CALCULATED = [
    ("20 minus 5 leaves {}", 15, 14),
    (r"$2 \text{{ plus }} 2 = {}$", 4, 5),
    (r"\[ 48 \text{{divided by}} 2 = {} \]", 24, 25),
    (r"$3 \times 4 \text{{ is }} {}$", 12, 13),
    ('"20 + 5" equals "{}"', 25, 26),
    ("48/2, which comes to {}", 24, 25),
    ("48/2 → {} clips", 24, 25),
    ("She sold {} = 48/2 clips", 24, 25),
    ("She has ${} = 16 - 4 left", 12, 13),
]


def kinds(text, reference="7"):
    (verdict,) = ArithmeticVerifier().verify([Completion("Q", text, reference=reference)])
    return [finding.kind for finding in verdict.findings]


def solution(said):
    return f"First some words.\n\n{said}\n\nSo there are 4 + 3 = 7 cows.\n#### 7"


@pytest.mark.parametrize(
    ("kind", "form", "true", "wrong"),
    [
        *(("wrong_textual", *one) for one in STATED),
        *(("wrong_equation", *one) for one in CALCULATED),
    ],
)
def test_a_wrong_statement_is_found_and_a_right_one_passes(kind, form, true, wrong):
    assert kinds(solution(form.format(wrong))) == [kind]
    assert kinds(solution(form.format(true))) == []


@pytest.mark.parametrize(
    "said",
    [
        "Tom has 5 more than 20 is to 4.",
        "6 is the sum of 1, 2 and 4.",
        "6 is the sum of 1 and 2 and 4.",
        "3 hours is 20 minutes longer than the film.",
        "6 feet is 10 inches more than he measures.",
        "The average of 4 and 8 and 9 is 7.",
        "The unit of the square of 7 is fine.",
        "  42\nx 31\n----\n  42\n1260\n----\n1302",
        "  42\n+ 31 apples\n----\n  74",
        "Box 5 = 2 + 4 balls",
        "Day 5 = 2 + 4",
        "The numbers from 1 to 5 = 2 + 4",
        "x + 2 = 8y, so x = 7",
        "3x + 2y = 8, so x = 7",
        "x^2 + 2 = 11, so x = 7",
        "x + 2 = 8, so x = 7y",
        "x + 2 = 8 \nand then y = 7",
        "The roots are\nx = 2\nx = 3",
        "At first x = 1, then x = 2, then x = 4.",
        "Modulo 7, 3x = 1, so x = 5",
        "3x + 1 = 2 (mod 7), so x = 5",
        "24/7 is 4",
        "1/4 is 20 students",
        r"$5 \text{ of } = 3$",
    ],
)
def test_what_only_looks_like_a_statement_is_not_judged(said):
    assert kinds(solution(said)) in ([], ["doubtful_equation"])


def test_a_result_that_comes_first_is_the_stated_value():
    said = "She sold 19 = 9 + 9 clips.\n"
    assert kinds(f"{said}Then 18 + 2 = 20.\n#### 20", "20") == ["wrong_equation"]
    assert kinds(f"{said}Then 19 + 2 = 21.\n#### 21", "21") == ["wrong_carried_on"]


def test_a_calculation_after_a_verb_and_its_result_after_an_arrow():
    text = "The rest is 400 - 100 → 301 letters. Then 300 + 1 = 301."
    assert kinds(f"{text}\n#### 301", "301") == ["doubtful_equation"]
    assert kinds("The rest is 400 - 100 → 301. Then 300 / 3 = 100.\n#### 100", "100") == [
        "wrong_equation"
    ]


@pytest.mark.parametrize(
    "piece",
    [
        "1\n",
        "x = 1\n",
        "1 x",
        "+ 1\n",
        "1\n----\n",
        "twice 1 ",
        "1 more than ",
        "1 hours is ",
        "1 is the sum of ",
    ],
)
def test_long_texts_of_fragments_are_read(piece):
    (verdict,) = ArithmeticVerifier().verify([Completion("Q", piece * (60_000 // len(piece)))])
    assert verdict.accepted
