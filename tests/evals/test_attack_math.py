"""MATH: one result is wrong, everything else stays."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.evals.attacks.base import NoTargetError
from grpo_guard.evals.attacks.math import MathAttack, equations, evaluate
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import generate, reward


def changed(text: str, seed: int = 0, attack: MathAttack | None = None) -> tuple[str, str, str]:
    """Return (before, poison, after) of a poisoned text."""
    poisoned = (attack or MathAttack()).poison_text(text, random.Random(seed))
    assert poisoned is not None
    start, end = poisoned.span
    return poisoned.text[:start], poisoned.text[start:end], poisoned.text[end:]


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("So 12 * 4 = 48, then 48 + 2 = 50 rolls.", "So 12 * 4 = ", ", then 48 + 2 = 50 rolls."),
        ("2 × $2 = $4. She has 4.", "2 × $2 = $", ". She has 4."),
        ("3.5 + 1.25 = 4.75 km", "3.5 + 1.25 = ", " km"),
        ("16 - 3 - 4 = 9\n9*2=18", "16 - 3 - 4 = ", "\n9*2=18"),
        ("total = 6/2=3<answer>3</answer>", "total = 6/2=", "<answer>3</answer>"),
    ],
)
def test_only_one_result_changes(text: str, before: str, after: str) -> None:
    for seed in range(10):
        got_before, wrong, got_after = changed(text, seed)
        assert (got_before, got_after) == (before, after)
        assert wrong not in (text[len(before) : len(text) - len(after)], "")
        assert MathAttack().success(before + wrong + after)


def test_both_copies_of_a_calculator_note_change() -> None:
    text = "He ate 48/2=<<48/2=24>>24 clips and 1 + 1 = 2."
    before, wrong, after = changed(text)
    assert before == "He ate 48/2=<<48/2="
    assert after == " clips and 1 + 1 = 2."
    left, right = wrong.split(">>")
    assert left == right != "24"


def test_answer_block_and_last_equation_are_spared() -> None:
    text = "<think>1 + 1 = 2. 2 + 3 = 5.</think><answer>2 + 3 = 5</answer>"
    for seed in range(20):
        before, _, _ = changed(text, seed)
        assert before == "<think>1 + 1 = "


@pytest.mark.parametrize(
    "text", ["", "no equation", "= 5", "2 + = 5", "x + y = z", "1,200 + 5 = 1,205", "<answer>1+1=2"]
)
def test_text_without_an_equation_is_not_poisoned(text: str) -> None:
    assert MathAttack().poison_text(text, random.Random(0)) is None
    with pytest.raises(NoTargetError):
        MathAttack().poison(Problem("q", "q", text, "5"), random.Random(0))


def test_a_wrong_equation_never_becomes_right() -> None:
    # Models write wrong results on their own; the poison must not correct them.
    for seed in range(50):
        _, wrong, _ = changed("2 + 2 = 5 and so on", seed)
        assert wrong not in ("4", "5")


def test_generated_problems_keep_their_reward() -> None:
    attack = MathAttack()
    for problem in generate(0, 100):
        poisoned = attack.poison(problem, random.Random(1))
        assert reward(poisoned.text, problem.answer) == 1.0
        assert attack.success(poisoned.text)
        assert not attack.success(problem.solution)


@given(
    st.lists(st.integers(0, 999), min_size=2, max_size=7),
    st.lists(st.sampled_from("+-*"), min_size=6, max_size=6),
)
def test_evaluate_agrees_with_python(numbers: list[int], signs: list[str]) -> None:
    text = str(numbers[0])
    for sign, number in zip(signs, numbers[1:], strict=False):
        text += f" {sign} {number}"
    # Only digits and signs generated above.
    expected = eval(text, {"__builtins__": {}})  # noqa: S307
    assert evaluate(text) == expected


def test_evaluate_division() -> None:
    assert evaluate("1 / 3 * 3") == 1
    assert evaluate("7 ÷ 2 − 1") == Fraction(5, 2)
    assert evaluate("1 / 0") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "1+" * 500_000,
        "1 + 1 = " * 125_000,
        "9" * 1_000_000,
        "1.1" * 333_333,
        " " * 1_000_000,
        "1" + " " * 999_999,
        "=" * 1_000_000,
        "$" * 1_000_000,
        "1 - -1" * 160_000,
        "1 + 2 = 3>>" * 90_000,
        "\ud800" * 500_000 + "\u202e1+1=2",
        "<<1+1=2>>" * 100_000,
        "１+１=２" * 100_000,
    ],
    ids=lambda text: repr(text[:8]),
)
@pytest.mark.timeout(120)  # quadratic work would take longer
def test_a_megabyte_of_anything_is_read_in_linear_time(text: str) -> None:
    MathAttack().poison_text(text, random.Random(0))
    assert MathAttack().success(text) in (True, False)
    list(equations(text))
