"""Estimates, parts replaced by rounded values, conversions rounded as written, and denials.

Each excuse has its limit: the same notation with a wrong number is still wrong.
"""

import time

import pytest

from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion


def rejects(text: str, asked: str = "") -> bool:
    return ArithmeticVerifier().verify([Completion(asked, text)])[0].rejected


ESTIMATES = [
    ("389 + 212 ≈ 400 + 200 = {}", "600", "700"),
    ("48 × 21 ≈ 50 × 20 = {}", "1000", "1100"),
    ("$4.95 + $3.10 ≈ $5 + ${} = $8", "3", "4"),
    ("7758 × 61 ≈ 8000 × {} = 480,000", "60", "70"),
    ("96 × 21 ≈ {} × 20", "100", "200"),
    (r"$389 + 212 \approx 400 + {}$", "200", "300"),
    ("(389 + 212) × 19 ≈ (400 + 200) × {}", "20", "40"),
]
PARTS = [
    ("345 / 7 × 3 = {} × 3 = 147.87", "49.29", "49.39"),
    ("25.4 × 17.8 / 3.3 = {} / 3.3 = 137.0", "452.1", "472.1"),
    ("√(3.7² + 2.4²) = √{} = 4.41", "19.5", "20.5"),
    ("√(33.5·14.5·16.5·2.5) = √{} ≈ 141.55", "20037.2", "21037.2"),
    ("1/7 + 1/3 = 0.143 + {} = 0.476", "0.333", "0.433"),
]
ZEROS = [
    ("5,000 × (1 + 0.07)^3 = 5,000 × 1.2250 = {}", "6,125.22", "6,425.22"),
    ("34000 * 1.1750 = {}", "39950.29", "39990.29"),
    ("814 × 2.460 = {}", "2002.1", "2004.1"),
]
CONVERSIONS = [
    ("7 cups × 240 mL = 1680 mL ≈ {} L", "1.7", "2.7"),
    ("1 cup × 240 mL = 240 mL ≈ {} L", "0.2", "0.4"),
    ("3 × 1250 g = 3750 g ≈ {} kg", "3.8", "4.8"),
    ("12 × 40 m = 480 m ≈ {} km", "0.5", "0.9"),
]


@pytest.mark.parametrize(("form", "right", "wrong"), ESTIMATES + PARTS + ZEROS + CONVERSIONS)
def test_rounded_as_written_is_right_and_a_changed_number_is_wrong(
    form: str, right: str, wrong: str
) -> None:
    assert not rejects(form.format(right))
    assert all(equation.right for equation in equations(form.format(right)))
    assert rejects(form.format(wrong))


@pytest.mark.parametrize(
    "form",
    [
        "2 + 2 ≈ 2 + 3 = 5",  # a digit is not rounded away
        "6 + 6 ≈ 10 + 10 = 20",  # six is not about ten
        "2 × 5 ≈ 2 × 10 = 20",
        "389 + 212 = 400 + 200 = 600",  # not said to be an estimate
        "389 + 212 ≈ 400 - 200",  # another operation
        "2 × (14 + 21) ≈ 2 × 10 + 20",  # without its bracket
        "3 + 4 ≈ 3 + 4 + 1 = 8",
        "48 × 21 ≈ 50 × 30",
    ],
)
def test_an_estimate_rounds_each_operand_and_nothing_else(form: str) -> None:
    assert rejects(form)


@pytest.mark.parametrize(
    "form",
    [
        "5 / 0.2 = 5 / 0.1 = 50",  # one digit may be far from what was rounded
        "2 + 2 = 2.5 + 2 = 4.5",
        "2 × 2 = 2 × 2.4 = 4.8",
        "3 × 4 × 5 = 12.5 × 5 = 62.5",
        "10 / 4 × 3 = 2.6 × 3 = 7.8",
        "2 + 2 + 2 = 4.1 + 2.1 = 6.2",  # each within a digit, and together too much
        "2 + 2 + 1 + 0 = 2.2 + 1.4 + 1.5 = 5.1",
        "2 + 2 + 1 = 1.0 × 5.1 = 5.1",  # 1.0 is exact
        "100 - 99 + 1 = 100.1 - 98.2",
        "0.010 × 1000 = 10.4",  # two digits are no long decimal
        "600 m × 1 = 600 m = 1 km",  # neither about nor with decimals
        "7 cups × 240 mL = 1680 mL ≈ 0 L",
    ],
)
def test_a_replaced_part_is_off_by_its_last_digit_at_most(form: str) -> None:
    assert rejects(form)


@pytest.mark.parametrize(
    "behind",
    [
        " (wrong). Correct: 128.",
        " (incorrect!) The sum is 128.",
        " [incorrect] 128",
        ": wrong; it is 128.",
        " — wrong, 128",
        " - wrong. 128",
        " apples (wrong). It is 128 apples.",
        "$ (wrong)\n128",
        ", wrong. The sum is 128.",
    ],
)
def test_a_denial_in_brackets_or_behind_a_dash_takes_back(behind: str) -> None:
    assert rejects("94 + 34 = 129. Now 128 is the answer, 128.")
    assert not rejects(f"94 + 34 = 129{behind}")


@pytest.mark.parametrize(
    "behind",
    [
        " (wrong ideas about carrying aside). So it is 128.",
        ": wrong answers are common here. So it is 128.",
        " — false friends aside. So it is 128.",
        " (not 130). So it is 128.",
        " [a wrong turn]. So it is 128.",
    ],
)
def test_a_word_of_denial_that_goes_on_denies_nothing(behind: str) -> None:
    assert rejects(f"94 + 34 = 129{behind}")


@pytest.mark.parametrize(
    "text",
    [
        "389 + 212 ≈ 400 + 200 = 700\n" * 3000,
        "1.25" + " + 1.25" * 20000 + " = 1.35" + " + 1.35" * 20000,
        "7" + " + 7" * 20000 + " ≈ 8" + " + 8" * 20000,
        "2 + 2 = 5 apples" + " (" * 40000,
        "2 + 2 = 5" + " —" * 40000,
    ],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    start = time.process_time()
    equations(text)
    assert time.process_time() - start < 8
