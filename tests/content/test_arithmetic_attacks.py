"""Wrong equations in the many ways of writing one: each of them must be found."""

import pytest

from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.arithmetic.words import statements
from grpo_guard.core.completion import Completion
from tests.content.arithmetic_forms import SIGNS

# Line breaks within an equation, and invisible characters.
HIDDEN = [
    "2 \u2062* 3 = 7",
    "2\u200b + 2 = 5",
    "2 +\u200b 2 =\u200b 5",
    "2 + 2 =\u2060 5",
    "2 + 2 =\ufeff 5",
    "2 + 2 =\t5",
    "2 + 2 =\u200b5",
    "2 + 2 = \u200b 5 \u200b",
    "2 + 2 =\n5",
    "2 + 2\n= 5",
    "2 +\n2 = 5",
]
# The end of a sentence hides nothing: a number and a full stop before it, an exclamation mark or a
# bracket after it.
SENTENCES = [
    "So 5 * 23 = 115. 114 + 2 = 117",
    "We get 115. 114 + 2 = 117.",
    "5 * 23 = 115, 114 + 2 = 117",
    "5 * 23 = 115; 114 + 2 = 117",
    "There are 12. 400 + 2 = 403.",
    "114 + 2 = 117!",
    "(114 + 2 = 117!)",
    "So 114 + 2 = 117! Great.",
    "114 + 2 = -117!",
    "114 + 2 is 117!",
    "114 + 2 = 117 apples!",
    "114 + 2 = 117! (yes)",
    "9" * 6000 + ". 114 + 2 = 117",
]


@pytest.mark.parametrize("form", SENTENCES)
def test_wrong_equation_at_a_sentence_boundary_is_found(form: str) -> None:
    assert ArithmeticVerifier().verify([Completion("", form)])[0].rejected


@pytest.mark.parametrize(
    "form",
    [
        "14, 400 / 80 = 180",
        "14. 400 / 80 = 180",
        "0. 125 * 8 = 1",
        "1, 234, 567 + 3 = 1234570",
        "1, 234 + 3 = 1, 237",
        "It costs 14, 400 + 100 = 14500 dollars.",
        "114 + 2 = 116!",
        "So she has 114 + 2 = 116 apples!",
        "5! = 120",
        "117 * 116! = 117!",
        "There are 200! / 198! = 200 * 199 = 39800 ways.",
    ],
)
def test_a_right_equation_in_such_a_notation_is_not_rejected(form: str) -> None:
    assert not ArithmeticVerifier().verify([Completion("", form)])[0].rejected


WORDS = """
3 apples and 4 apples make 8 apples
half of 50 is 26
half of 50 = 26
one third of 30 is 11
twice 7 is 15
double 7 is 15
7 squared = 48
7 squared is 48
2 + 2 = five
two + two = five
two plus two is five
Two plus two equals five
two times three is seven
two and two make five
ten minus three is eight
twelve divided by four is four
The sum of 2 and 2 is 5
The sum of 6 and 7 = 14
The product of 3 and 4 is 13
The difference between 10 and 4 is 7
Adding 6 and 7 gives 14
Add 6 and 7 to get 14
Adding 6 to 7 we get 14
Multiply 3 by 4 to get 13
Multiplying 3 by 4 gives 13
Dividing 12 by 4 gives 4
Subtract 4 from 10 to get 7
Subtracting 4 from 10 gives 7
""".strip().split("\n")


@pytest.mark.parametrize("form", [*SIGNS, *HIDDEN])
def test_a_wrong_equation_is_found(form: str) -> None:
    text = f"He thinks.\n{form}\n"
    assert not all(equation.right for equation in equations(text))
    verdict = ArithmeticVerifier(on_wrong="reject").verify([Completion("", text)])[0]
    # An equation that the text itself takes back is reported, as it teaches the correction too.
    assert verdict.rejected or "actually" in form or "wait, no" in form


@pytest.mark.parametrize("form", WORDS)
def test_a_wrong_statement_in_words_is_found(form: str) -> None:
    text = f"He thinks.\n{form}.\n"
    assert not all(statement.right for statement in statements(text, equations(text)))


@pytest.mark.parametrize(
    "said",
    [
        "2 + 2 = 5 is not surprising.",
        "The max 2 + 2 = 5.",
        "In square 2 + 2 = 5.",
        "The log 2 + 2 = 5.",
        "2 + 2 ≡ 5.",
    ],
)
def test_threat_a_word_next_to_a_wrong_equation_excuses_nothing(said: str) -> None:
    text = f"{said} There are 4 + 3 = 7 cows.\n#### 7"
    (verdict,) = ArithmeticVerifier().verify([Completion("Q", text, reference="7")])
    assert verdict.rejected


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ("2 + 2 = 5 is not true.", ["taken_back"]),
        ("If 2 + 2 = 5, pigs fly.", ["taken_back"]),
        ("The square of 3 + 2 = 11.", ["doubtful_equation"]),
        ("sqrt 16 + 2 = 6.", ["doubtful_equation"]),
        ("gcd 12 + 8 = 4.", ["doubtful_equation"]),
        ("negative 5 + 3 = -2.", ["doubtful_equation"]),
        ("17 ≡ 2 mod 5 and 2 + 2 ≡ 1 (mod 3).", []),
        ("15 - ?(3 + 4) = 8", ["doubtful_equation"]),
        ("4 + ? 2 + 3 = 9 so the missing one is 4.", ["doubtful_equation"]),
        (r"base (2) \boxed{1+1=10}", ["doubtful_equation"]),
        (r"2 \cdot (3) \boxed{3 + 4 = 42}.", ["doubtful_equation"]),
        ("5 - 5 = 2 = 0 + 0. Wait, 5 - 5 = 0.", ["taken_back"]),
    ],
)
def test_denied_and_incomplete_equations_are_reported(said: str, kinds: list[str]) -> None:
    text = f"{said} There are 4 + 3 = 7 cows.\n#### 7"
    (verdict,) = ArithmeticVerifier().verify([Completion("Q", text, reference="7")])
    assert verdict.accepted
    assert [finding.kind for finding in verdict.findings] == kinds
