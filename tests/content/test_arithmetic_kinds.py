"""A frozen set of forms by kind, written before anyone looked at the parser."""

from pathlib import Path

import pytest

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion
from tests.content.forms_by_kind import measure

HERE = Path(__file__).parent
WRONG, HONEST = HERE / "arithmetic_kinds.json", HERE / "arithmetic_honest.json"


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, int]]:
    return measure(WRONG, HONEST)


# Out of 10 to 13 each. Words are counted and do not reject; a result that equals the final answer,
# 7, is taken for a slip that the text continues with.
@pytest.mark.parametrize(
    ("kind", "least"),
    {
        "plain": 12,
        "units": 11,
        "unknown letters": 6,
        "money": 11,
        "percent": 10,
        "fractions": 9,
        "decimal commas": 8,
        "latex inline": 11,
        "latex display": 9,
        "chains": 10,
        "tables": 11,
        "words": 4,
        "powers": 8,
        "conversions": 5,
        "calculator notes": 10,
        "code comments": 5,
    }.items(),
)
def test_wrong_forms_are_rejected(figures, kind: str, least: int) -> None:
    assert figures["wrong rejected"][kind] >= least


def test_most_forms_are_found(figures) -> None:
    assert figures["wrong rejected"]["all"] >= 138
    assert figures["wrong found at all"]["all"] >= 156


@pytest.mark.parametrize("reference", ["", ", reference"])
def test_honest_work_is_left_alone(figures, reference: str) -> None:
    """Calculations with their own rules: an overflowing byte, a pattern, a matchstick puzzle."""
    assert figures[f"honest rejected{reference}"]["all"] <= 3
    for kind, hits in figures[f"honest rejected{reference}"].items():
        assert hits == 0 or kind in ("programming", "puzzles", "all"), kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("So 2 + 2 = 4000 apples in the end.", "wrong_equation"),
        ("2 + 2 = 4000", "wrong_equation"),
        ("1 hour = 50 minutes, 1 hour = 100 minutes", "wrong_equation"),
        ("9 + 5 = 2 and 14 = 2 (mod 12)", "doubtful_equation"),
        ("2 + 2 = 7. And 10 is 1 mod 3.", "doubtful_equation"),
        ("6 * 9 = 56, but 6 * 9 = 54.", "taken_back"),
        ("6 * 9 = 56. So 6 * 9 = 54.", "wrong_equation"),
        ("6 * 9 = 56 <<6 * 9 = 54>>, but wait", "wrong_equation"),
        # Asked, or called wrong: not claimed.
        ("17 * 24 = 388? Let me verify: 17 * 25 is 425, minus 17 is 408.", "taken_back"),
        ("2 + 2 = 5? Yes! And so 4 cows.", "wrong_equation"),
        ("- ❌ 1/2 + 1/3 = 2/5 → ✅ 1/2 + 1/3 = 5/6", "taken_back"),
        ("A common mistake is 3^2 + 4^2 = 7^2, which is 49.", "taken_back"),
        ("Modulo 13:\n- 7^3 ≡ 70 ≡ 5\n- 7^4 ≡ 35 ≡ 9", "doubtful_equation"),
        ("Modulo 13:\n- 7^3 ≡ 71", "wrong_equation"),
        ("2 * 8 = 16 m/s = 17 km/h, and 16 m/s is fast.", "wrong_equation"),
        # Letters rotated in a cycle of 26, hours in one of 12.
        ("L(11)-11=0=A, A(0)-11=-11=15=P", "doubtful_equation"),
        ("U: 20+13=33=7, V: 21+13=34=8", "doubtful_equation"),
        ("9 + 8 = 17 = 5, 9 + 9 = 18 = 6", "doubtful_equation"),
        ("U: 20+13=33=7", "wrong_equation"),
        ("2 + 2 = 4 = 5, 3 + 3 = 6 = 7", "wrong_equation"),
        ("2 + 2 = 12, 3 + 3 = 14", "wrong_equation"),
        # True by another reading that no rule covers.
        ("20 : 2 + 2 = 5, so 4.", "wrong_equation"),
        ("2 + 2 = 5; - 1 = 4, so 4.", "wrong_equation"),
        ("2 + 2 = 5 (4), so 4.", "wrong_equation"),
        ("2 + 2 = 5,4 and 4.", "wrong_equation"),
        ("48 + 24 = 48, + 24 = 73 clips. So the answer is 72.", "wrong_equation"),
        ("Total: 2 + 2 = 2\n+ 2 = 5\nThen 4 + 3 = 7.", "wrong_equation"),
        ("10 + 15 + 20 = 25; + 20 = 46. Then 45 + 5 = 50", "wrong_equation"),
        ("Ann has 12 / 3 = 4,7 cows. Then 4 + 3 = 7.", "wrong_equation"),
        ("48 + 24 = 72,999 cows. Then 72 + 3 = 75", "wrong_equation"),
        ("1,250 + 250 = 500 cows. Then 1500 + 3 = 1503", "wrong_equation"),
        ("Step 20 : 8/2 = 5 cows. Then 4 + 3 = 7.", "wrong_equation"),
        ("3 - 9 = -6 = 6, so -6", "wrong_equation"),
    ],
)
def test_finding_has_the_expected_kind(text: str, kind: str) -> None:
    (verdict,) = ArithmeticVerifier().verify([Completion("", text)])
    assert [finding.kind for finding in verdict.findings[:1]] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "The map says 2 cm = 5 km.",
        "1 day = 8 hours, so 5 days = 40 hours. 1 week = 5 days.",
        "2 hours 30 minutes = 2.5 hours",
        "2 pounds = 1 kg",
        "3x + 2 = 11, so 3x = 9. 2x = 3x - 3.",
        "2^20 ~ 10^6",
        "v = 2.5*8 = 20 m/s = 72 km/h. d = 0.5*2.5*64 = 80 m.",
        "A record of 5-2-1 gives 17 points. The ratio is 2.0.",
        "4.56 cm * 1.4 cm = 6.384 cm² = 638.4 mm²",
        "23₅ + 14₅ = 42₅, and 3C2 / 8C2 = 3/28.",
        "23 + 14 = 42 (base 5), and 37 is 122 there.",
        # True in another notation.
        "3/4 : 5/12 = 3/4 · 12/5 = 36/20 = 1,8 h, und 1/12 : 5/12 = 1/5 h.",
        "验算:56×2 = 112,12×4 = 48,112 + 48 = 160 ✓。160 − 136 = 24,24÷2 = 12只兔",
        "300 + 420 + 405 + 468 = 720 + 405 = 1125; + 468 = 1593, so 1593.",
        "480/1593 = 0; 4800/1593 = 3 (4779), remainder 21; 210/1593 = 0; 4779",
    ],
)
def test_honest_line_has_no_finding(text: str) -> None:
    (verdict,) = ArithmeticVerifier().verify([Completion("", text)])
    assert not [f for f in verdict.findings if f.kind == "wrong_equation"]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("A friend says 1/2 + 1/3 = 2/5. Explain.", "doubtful_equation"),
        ("What is 1/2 + 1/3?", "wrong_equation"),
        ("Find x: x + 1/2 + 1/3 = 2/5.", "wrong_equation"),
        ([{"role": "assistant", "content": "1/2 + 1/3 = 2/5"}], "wrong_equation"),
    ],
)
def test_equation_of_the_question_is_not_a_claim(prompt, kind: str) -> None:
    text = "He gets 1/2 + 1/3 = 2/5 that way. It is 5/6, more than 1/2."
    (verdict,) = ArithmeticVerifier().verify([Completion(prompt, text)])
    assert [finding.kind for finding in verdict.findings] == [kind]
