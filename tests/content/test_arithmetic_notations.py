"""Notations: one test per way of writing, and random expressions printed in random notation."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.notation import scan
from grpo_guard.content.arithmetic.reader import Reader


@pytest.mark.parametrize(
    ("pattern", "true", "wrong"),
    [
        ("2 + 2 = {}", "4", "5"),
        ("2 x $2 = ${}", "4", "5"),
        ("1/2*10={}", "5", "6"),
        ("2¹⁰ = {}", "1024", "1000"),
        ("2/3 = {}", "0,67", "0,77"),
        ("27/216 = **1/{}** (12.5 %)", "8", "9"),
        ("14/45 = {}", "0,3111", "0,3211"),
        ("12,5 · 4 = {}", "50", "51"),
        ("1.004¹² ≈ {}", "1.0490702", "1.0890702"),
        ("12 * 4 = {} tickets", "48", "47"),
        ("1,200 + 300 = {}", "1,500", "1,600"),
        ("1 200 + 300 = {}", "1 500", "1 600"),
        ("20% of 50 = {}", "10", "11"),
        ("50 * 20% = {}", "10", "12"),
        ("50 - 20% = {}", "40", "41"),
        ("30/120 = {}", "25%", "26%"),
        ("10/3 = {}", "3.33", "3.43"),
        ("10/3 ≈ {}", "3.3", "3.6"),
        ("So 1 + 2 = 3 = {}", "3", "4"),
        ("2 * 3 = 4 + {}", "2", "3"),
        ("1 + 2 = 3 * 2 = {}", "6", "7"),
        ("Total = 3 * 4 = {}", "12", "13"),
        (r"\frac{{1}}{{2}} \times 10 = {}", "5", "6"),
        (r"$2 \cdot 3 = {}$", "6", "7"),
        (r"\(12 \div 4 = {}\)", "3", "4"),
        (r"\[ 3 + 4 = \boxed{{{}}} \]", "7", "8"),
        (r"\$5 \times 3 = \${}", "15", "16"),
        (r"3 \text{{ cats}} + 4 \text{{ cats}} = {} \text{{ cats}}", "7", "8"),
        (r"2(3 + 4) &= 2 \cdot 7 \\ &= {}", "14", "15"),
        ("<<2+3={}>>", "5", "6"),
        ("3 apples + 4 apples = {} apples", "7", "8"),
        ("$5/hour * 3 hours = ${}", "15", "16"),
        ("3 × 4 = {}", "12", "13"),
        ("8 ÷ 2 = {}", "4", "5"),
        ("8 − 2 = {}", "6", "5"),
        ("24 – 20 = {}", "4", "5"),
        ("２ ＋ ２ ＝ {}", "4", "5"),
        ("2^3 = {}", "8", "9"),
        ("2**3 = {}", "8", "9"),
        ("2³ = {}", "8", "9"),
        ("2^{{3}} + 1 = {}", "9", "10"),
        ("(1 + 2) * (3 + 4) = {}", "21", "22"),
        ("[(1 + 2) * 3] - 1 = {}", "8", "9"),
        ("2(3 + 4) = {}", "14", "15"),
        ("1 1/2 + 1 = {}", "2 1/2", "2 1/4"),
        ("½ + ½ = {}", "1", "2"),
        (r"2\frac{{1}}{{2}} + \frac{{1}}{{2}} = {}", "3", "4"),
        ("3 - 5 = {}", "-2", "-3"),
        ("£5 + £3 = £{}", "8", "9"),
        ("3 + 4 = a total of {} apples", "7", "8"),
        ("3 + 4 is {}", "7", "8"),
        ("3 times 4 equals {}", "12", "13"),
        ("12 divided by 4 gives {}", "3", "4"),
        ("10 minus 4 leaves us at 6, 10 minus 4 is {}", "6", "7"),
        ("**5** + **3** = **{}**", "8", "9"),
        ("`5 + 3 = {}`", "8", "9"),
        ("| 5 + 3 = {} |", "8", "9"),
        ("5 + 3\n= {}", "8", "9"),
        ("5 + 3 =\n{}", "8", "9"),
        ("2 dozen + 6 = {}", "30", "31"),
        ("She works 6 hours * 5 days = {} hours", "30", "31"),
    ],
)
def test_notation_is_read(pattern: str, true: str, wrong: str) -> None:
    found = equations(pattern.format(true))
    assert found
    assert all(equation.right for equation in found)
    text = pattern.format(wrong)
    spans = [equation.span for equation in equations(text) if not equation.right]
    assert any(wrong in text[start:end] or text[start:end] in wrong for start, end in spans)


def test_converted_units() -> None:
    for text in ("2 hours + 30 minutes = {} minutes", "75 * 2 = {} minutes", "150 = 2.5 * {}"):
        assert all(e.right for e in equations(text.format(150)))
    assert [e.right for e in equations("2 hours + 30 minutes = 151 minutes")] == [False]


Tree = tuple[str, object, object] | int
WRITTEN = {
    "plain": {"+": "+", "-": "-", "*": "*", "/": "/"},
    "unicode": {"+": "+", "-": "−", "*": "×", "/": "÷"},
    "latex": {"+": "+", "-": "-", "*": r"\times", "/": r"\div"},
    "dots": {"+": "+", "-": "-", "*": r"\cdot", "/": "/"},
}
trees = st.recursive(
    st.integers(1, 99),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=6,
)


def value(tree: Tree) -> Fraction | None:
    if isinstance(tree, int):
        return Fraction(tree)
    sign, left, right = tree
    a, b = value(left), value(right)  # type: ignore[arg-type]
    if a is None or b is None or (sign == "/" and b == 0):
        return None
    return {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b


def printed(tree: Tree, style: str, unit: str, *, inner: bool = False) -> str:
    """Put every group in brackets, so that it has only one reading; \frac in LaTeX."""
    if isinstance(tree, int):
        return f"{tree}{unit}"
    sign, left, right = tree
    parts = [printed(side, style, unit, inner=True) for side in (left, right)]  # type: ignore[arg-type]
    if style == "latex" and sign == "/":
        bare = [p[1:-1] if p.startswith("(") and not unit else p for p in parts]
        return (
            rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if unit else rf"\frac{{{bare[0]}}}{{{bare[1]}}}"
        )
    text = f" {WRITTEN[style][sign]} ".join(parts)
    return f"({text})" if inner else text


def read(text: str) -> Fraction:
    folded = fold(text)
    tokens = scan(folded, 0, len(folded))
    side = Reader(tokens).side(0)
    assert side.end == len(tokens)
    assert side.value is not None
    return Fraction(side.value)


@settings(max_examples=300, deadline=None)
@given(tree=trees, style=st.sampled_from(sorted(WRITTEN)), unit=st.sampled_from(["", " cups"]))
def test_round_trip(tree: Tree, style: str, unit: str) -> None:
    expected = value(tree)
    assume(expected is not None)
    assert read(printed(tree, style, unit)) == expected


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    tree=trees,
    style=st.sampled_from(sorted(WRITTEN)),
    step=st.sampled_from([1, 2, -1, -2]),
    around=st.sampled_from([("", ""), ("So ", "."), ("Total = ", " in all"), ("* ", "\n")]),
)
def test_true_equations_hold_and_changed_ones_do_not(
    tree: Tree, style: str, step: int, around: tuple[str, str]
) -> None:
    exact = value(tree)
    assume(not isinstance(tree, int) and exact is not None and exact.denominator == 1)
    assert exact is not None
    left = printed(tree, style, "")
    # Bare fractions, "1/4 = 20", and single negative differences may be labels and ranges.
    assume(exact >= 2)
    assume(left.count("(") == 0 or style != "plain")
    before, after = around
    true = f"{before}{left} = {exact}{after}"
    assert [e.right for e in equations(true)] in ([True], [])
    text = f"{before}{left} = {exact + step}{after}"
    start = len(before) + len(left) + 3
    wrong = [e for e in equations(text) if not e.right]
    assert [e.span for e in wrong] == [(start, start + len(str(exact + step)))]


@pytest.mark.parametrize(
    "text",
    [
        "**Cost:** 470.88 €** ≈ **$517.97",
        r"$470.88\ € \approx \$517.97$",
        "4 Fe + 3 O₂ → 2 Fe₂O₃",
        "2 H₂ + O₂ → 2 H₂O",
    ],
)
def test_other_statements_are_not_equations(text):
    assert all(equation.right or equation.doubt for equation in equations(text))


def test_one_currency_is_an_equation():
    assert [e.right for e in equations("2 € + 2 € = 5 €")] == [False]
    assert [e.right for e in equations("$2 + $2 = $5")] == [False]
