"""Lines that the quick scan settles contain the same equations as the full parser finds."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.content.arithmetic import equations as module
from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.plain import settled

PIECES = tuple(
    piece.replace("_", " ")
    for piece in re.findall(
        r"\S+",
        "0 1 2 3 5 12 16 000 05 1,200 1,5 0.50 1.5 .5 1.2.3 1st 2x 3/8 "
        "= = = = + + - - * / x X ^ % ! ? . , ; : ( ) $ ' ~ -> ... << >> "
        "eggs a an and of is are makes gives times plus minus by percent half dozen hundred "
        "approximately about total the kg hours per pi AB sqrt two-egg Times which he "
        "which_is that_is divided_by multiplied_by equal_to a_total_of of_the we_get",
    )
)
SUMS = tuple(
    f"{a} {sign} {b} = {value}"
    for a, b in ((16, 3), (12, 4), (1, 2), (0.5, 2))
    for sign, value in (
        ("+", a + b), ("-", a - b), ("*", a * b), ("x", a * b), ("/", a / b), ("+", a * b),
    )
)  # fmt: skip
LINES = st.lists(
    st.tuples(
        st.sampled_from(PIECES + SUMS), st.sampled_from(("", " ", " ", " ", "  ", "\n", "$"))
    ),
    max_size=14,
).map(lambda pieces: "".join(piece + behind for piece, behind in pieces))


def parsed(text, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "settled", lambda *_: None)
        return equations(text)


@settings(max_examples=150, deadline=None)
@given(LINES)
def test_settled_lines_match_the_full_parser(text):
    assert equations(text) == parsed(text, pytest.MonkeyPatch())


@pytest.mark.parametrize(
    "text",
    [
        "She has 16 - 3 = 13 eggs left.",
        "So he pays $1,200 + $5 + $0.50 = $1205.50 in total.",
        "He eats 3 eggs a day and 4 muffins, so that is 3 + 4 = 7.",
        "They run 5 miles * 2 days = 10 miles in 2 x 3 = 6 hours.",
        "5*3 + 2*4 = 15 + 8 = 23 books (well-read, so far).",
    ],
)
def test_prose_with_true_sums_needs_no_parser(text, monkeypatch):
    found = settled(fold(text), 0, len(text))
    assert found
    expected = parsed(text, monkeypatch)
    assert [(e.exact, e.span) for e in expected] == [(one.value, one.stated) for one in found]


@pytest.mark.parametrize(
    "text",
    [
        "She has 16 - 3 = 14 eggs left.",
        "5 times 16 - 3 = 13",
        "He has 3 and 1 / 2 = 0.5",
        "16 - 3 = 13 dozen",
        "16 - 3 = 13!",
        "16 - 3 = 13 12",
        "2(16 - 3 = 13)",
        "x = 16 - 3 = 13",
        "16 - 3 = 013",
        "20% of the 16 - 3 = 13",
        "1/2 of 16 - 3 = 13",
    ],
)
def test_anything_else_is_left_to_the_parser(text):
    assert settled(fold(text), 0, len(text)) is None
