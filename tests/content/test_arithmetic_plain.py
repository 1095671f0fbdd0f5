"""The path for plain lines changes nothing but the time: it is held against the full parser."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equations import equations, wrong_equations
from grpo_guard.content.arithmetic.plain import agreed, confirmed
from tests.content.test_arithmetic_honest import LINES
from tests.content.test_arithmetic_input import SOLUTIONS

PLAIN = [
    "She makes 9 * 2 = $18 every day at the farmer's market.",
    "<think>He bought 3 packs, so that is 3 x 5 = 15 cards.",
    "That leaves 48 / 2 = 24 clips in May.</think><answer>24</answer>",
    "5 boxes * 11 bolts = 55 bolts",
    "So he pays 1,200 + .5 * 10 = $1,205 in 2 days, and 4 - 3 = 1 more.",
]
NOTED = [
    "He eats 7 / 3 = <<7/3=2.3333333333333335>>2.33 a day, so 3 * 2.33 = <<3*2.33=6.99>>7 cows.",
    "That is 12 x 5 = $<<12*5=60>>60 on the 2 days.\nThen 60 - 15 = $<<60-15=45.0>>45.0 is left.",
]
PIECES = (
    *"0123456789+-*/x=$.,;:'() %\n",
    *(" and ", ", which is ", " is ", " of ", " dozen", " times ", " hours", "1/2", "a ", " m "),
    *("-of-", "/day", " 12 ", " = "),
    *("<<2+3=5>>5", "<<2*3=7>>", "<<", ">>", "<<7/3=2.3333333333333335>>", ">>8.", "2.33", "-"),
)


def assert_same(text: str) -> None:
    found = equations(text, fast=False)
    assert equations(text, fast=True) == found
    assert wrong_equations(text) == [equation for equation in found if not equation.right]


@pytest.mark.parametrize("line", PLAIN)
def test_plain_lines_are_confirmed(line: str) -> None:
    found = confirmed(line, fold(line), 0, len(line))
    assert found
    assert found == equations(line, fast=False)


@pytest.mark.parametrize("line", PLAIN)
def test_a_wrong_line_is_never_confirmed(line: str) -> None:
    for equation in equations(line):
        start, end = equation.span
        changed = f"{line[:start]}7{line[start:end]}{line[end:]}"
        assert confirmed(changed, fold(changed), 0, len(changed)) is None
        assert not all(e.right for e in equations(changed))


def test_a_value_is_confirmed_only_where_it_is_exact() -> None:
    assert agreed("10 / 4", "2.5") == agreed("5 boxes x $.5", "2.5") == agreed("1,000*.0025", "2.5")
    for left, stated in (
        ("10/3", "3.33"),
        ("2+2", "5"),
        ("1/0", "0"),
        ("3-5", "2"),
        ("8/2/2", "2"),
    ):
        assert agreed(left, stated) is None


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*PLAIN, *NOTED, *LINES]),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 3), st.sampled_from(PIECES)), max_size=4),
)
def test_changed_lines_read_the_same(line: str, changes: list[tuple[int, int, str]]) -> None:
    for at, length, piece in changes:
        line = line[:at] + piece + line[at + length :]
    assert_same(line)


def test_a_note_is_taken_with_what_stands_behind_it() -> None:
    assert_same("10 * 0.5 = <<10*0.5=5.0>>5.0. Then 5 + 5 = <<5+5=10>>100 cows.")
    assert_same("He has <<2+3=5>>6 cows and 2 + 3 = <<2+3=5>> 5. 12 - 5 = <<12-5=7>>8 = 7 + 1.")
    assert_same("<<20-42=-22>>-22\n<<1/7=0.14285714285714285>>0.14\n0.14 * 7 = 1")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*PIECES, "cows ", "5", "40", "= ", "2+2=4"]), max_size=25))
def test_any_mixture_reads_the_same(pieces: list[str]) -> None:
    assert_same("".join(pieces))


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's folder")
def test_real_completions_read_the_same() -> None:
    texts = [json.loads(line)["completion"] for line in SOLUTIONS.read_text().splitlines()]
    train = Path(SOLUTIONS.parent / "train.jsonl")
    if train.is_file():
        rows = train.read_text().splitlines()
        texts += [json.loads(row)["answer"] for row in random.Random(0).sample(rows, 1000)]
    for text in texts:
        assert_same(text)
