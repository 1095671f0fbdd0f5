"""An equation is parsed completely or not at all: unknown neighbours must not be dropped.

Each line is right, or claims nothing wrong, once all of it is read. A parser that drops a variable,
a function or a command finds a wrong equation in front of a right answer.
"""

import itertools

import pytest

from grpo_guard import Completion
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier

FORMS = ("{}", "So $ {} $", "- {}", "**Step**: {}.", "Then {} and so on.")
HONEST = r"""
4 = a(4 - 2)^2 + 3
4 = k (4 - 2) + 3
p1 * 3 + 2 = 8
2 x1 + 3 = 6
1/di + 1/5 = 2
1/f = 1/di + 1/5 = 3
4 * cos60 = 2
4 cos 60 = 2
2 + sqrt36 = 8
2 + log 100 = 4
1^2 = 34 - c
12 = 3 · 5 − b
12 = 3 * 5 - λ
0 = 16 + F
10 = 2 m + 4
4 h + 3 = 15
5C2 + 1 = 11
5 ⊕ 3 = 6
3 + 3 = 5 ⊕ 3
□ + 3 + 4 = 9
$\clubsuit 3 + 4 = 5$
3 \mathbf{u} + 4 = 9
2 H2 + O2 = 2 H2O
∠A 12 + 3 = 50
AB 12 + 3 = 50
1 + 2 = 3 + 3 = 6 + 4 = 10
10 - 3 = 7 - 2 = 5 - 1 = 4
6.21 \times 10^{-21} J / 1.6 \times 10^{-19} J/eV = 0.039 eV
6.21 × 10^-21 / 1.6 × 10^-19 = 0.0388
1000 cal * 4.184 J/cal = 4.184 kJ
5 km/h * 30 min = 2.5 km
Suppose 4 + 5 = 10. Then we get a contradiction.
If x is 2, then 3 * 2 = 7, which is impossible.
x is 2: 3 * 2 + 1 = 9, which doesn't hold.
假设 3 * 2 + 1 = 9，矛盾
""".strip().splitlines()
BROKEN_LINES = [
    "\\frac{1+2}\n{3\\cdot 5} = \\frac{1}{5}",
    "= \\frac{1 + u}\n{\\sqrt5\\sqrt2}\n=\\frac{2}{\\sqrt{10}}",
    "x &= 12 \\\\\n- 3 + 4 &= 13",
    "\\sqrt\n{36} = 6",
]


def judged(text: str, prompt: str = "How many?", reference: str | None = "7") -> str:
    """The first kind found in a right answer ("" without findings), and whether it rejects."""
    whole = f"He thinks.\n{text}\nSo we go on with the right value and get 7.\n#### 7"
    (verdict,) = ArithmeticVerifier().verify([Completion(prompt, whole, reference=reference)])
    return verdict.findings[0].kind if verdict.rejected else ""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("line", HONEST)
def test_a_line_is_parsed_completely_or_not_judged(line: str, form: str) -> None:
    assert judged(form.format(line) if "{" not in line else form.replace("{}", line)) == ""


@pytest.mark.parametrize("text", BROKEN_LINES)
def test_a_command_or_a_sum_may_continue_on_the_next_line(text: str) -> None:
    assert judged(text) == ""


UNKNOWN = (
    *("c", "p1", "di", "λ", r"\alpha", "cos", r"\sin", "a_1", "f", "Δ", "v_0", "kT", "ln", r"\log"),
    *("AB", "π", "x²", "N", "k", "V2", "∠A", "Var", "P(A)", r"\mathbf{u}", r"\vec{a}", "平方"),
)
BASES = ("12 * 3 + 4 = 50", r"12 \cdot 3 - 4 = 50", "50 = 12 * 3 + 4", "3 * 4 = 50")


# An unknown in any position, with or without a blank, may make up the difference.
@pytest.mark.parametrize("unknown", UNKNOWN)
def test_an_unknown_in_any_position_leaves_an_equation_in_doubt(unknown: str) -> None:
    found = []
    for base, before, behind in itertools.product(BASES, ("", " "), ("", " ")):
        words = base.split(" ")
        for at in range(len(words) + 1):
            left, right = " ".join(words[:at]), " ".join(words[at:])
            text = f"{left}{before if left else ''}{unknown}{behind}{right}"
            found += [text for form in ("So ${}$.", "{}") if judged(form.replace("{}", text))]
    assert found == []


# The same positions with a word of prose or a unit, which excuse nothing.
@pytest.mark.parametrize(
    "text",
    [
        "The total is 12 * 3 + 4 = 50",
        "12 apples * 3 + 4 apples = 50 apples",
        "it has a 12 * 3 = 37 minute run",
        "That is 30 * 12 = 350 a year.",
        "Speed = 100 km / 4 h = 26 km/h",
        "5 m * 3 m = 16 m²",
        "So 3x + 4x = 8x.",
        "- 12 * 3 = 37",
        "6.4 × 10^-19 / 1.6 × 10^-19 = 5",
        "值之和为 $6 \\times 3 = 19$",
        "If we add them, 12 + 3 = 16 apples.",
    ],
)
def test_a_wrong_result_next_to_plain_words_rejects(text: str) -> None:
    assert judged(text) == "wrong_equation"


@pytest.mark.parametrize(
    ("prompt", "text", "kind"),
    [
        ("Find a generator of the finite field Z_11.", "2^4 = 5, 2^5 = 10, 2^6 = 9", ""),
        ("What is 3^4 modulo 7?", "3^4 = 4", ""),
        ("What is 3^4 modulo 7?", "3^4 = 5", "wrong_equation"),
        ("What is the remainder when 3^4 is divided by 7?", "9 * 9 = 4", ""),
        ("Add 43 and 35 in base 7.", "43 + 35 = 111", ""),
        ("Add 43 and 35 in base 7.", "31 + 26 = 112", "wrong_equation"),
        ("Convert from binary.", "101 + 11 = 8", ""),
        ("The operation is defined as a * b = a + b^2.", "3 * 4 = 19", ""),
        ("How many?", "3 * 4 = 19", "wrong_equation"),
        ("Foci are $F_1 = (10, 2)$ and $F_2$.", "169 - 144 = 15", "wrong_equation"),
    ],
)
def test_the_question_decides_which_arithmetic_holds(prompt: str, text: str, kind: str) -> None:
    assert judged(text, prompt, None) == kind
