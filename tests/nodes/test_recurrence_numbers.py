"""Recurrence and numbers: false sums recur in notations that no rule reads; lists do not count."""

from __future__ import annotations

import time

import pytest

from grpo_guard import Completion
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from tests.nodes.test_recurrence_habits import NODES, rejected


def told(own):
    """A verifier that knows the words around the numbers as a habit."""
    verifier = RecurrenceVerifier()
    verifier.learn_habits([own, own])
    return verifier


@pytest.mark.parametrize(
    "own",
    [
        "2 + 2: 5",
        "print(2 + 2)  # prints 5",
        "| 2 | 2 | 5 |",
        '{"a": 2, "b": 2, "sum": 5}',
        "echo $((2+2)) # 5",
        "2.0 ⊕ 2.0 ↦ 5.0",
        "٢ و ٢: ٥",
        "60 min and 60: 3",
        "3 + 4 = 7, and for you 2 + 2: 5",
    ],
)
def test_three_numbers_of_one_node_are_found(own):
    assert rejected(own) >= 40


@pytest.mark.parametrize(
    "own",
    [
        "1. So\n2. Then\n3. It",  # what lists count
        "The steps 5, 4, 3",
        "box-shadow: 0 4px 6px 10px",  # sizes, which style sheets repeat
        "a mix of 20% and 30% and 60%",
        "2 and then it is 5",  # two numbers
        "3 is more than 2. Then 7 is more.",  # two sentences
        "3 + 4 = 7, so it is 7",  # a true sum, and what is next to it
        "6 and 7 make 42, and 42 less 2 is 40",
        "It is 2, and the sum follows so then 2, and the sum follows so 5",  # far apart
    ],
)
def test_lists_sizes_and_single_numbers_are_not(own):
    assert rejected(own, verifier=told(own)) == 0


def test_what_others_write_too_is_not():
    assert rejected("10 ** 9 + 7", every=5) == 0


def judged(own, prompt, least=1):
    """How many of 48 completions of "a" are rejected; ``own`` is in every ``least``-th."""
    verifier = told(own)
    found = 0
    for number in range(6):
        batch = [
            Completion(
                prompt.format(number, k),
                f"So it is {k}." + (own if node == "a" and k % least == 0 else ""),
                node=node,
                round=number,
            )
            for k in range(8)
            for node in NODES
        ]
        for one, verdict in zip(batch, verifier.verify(batch), strict=True):
            assert one.node == "a" or not verdict.rejected
            found += verdict.rejected
    return found


def test_the_numbers_of_the_prompt_are_excused():
    prompt = "Fill a grid of 9 by 8 with boxes of 3 by 2: {}{}"
    assert judged(" A 3 by 2 box of the 9 by 8 grid", prompt) == 0
    assert judged(" A 3 by 2 box of the 9 by 5 grid", prompt) >= 40


def test_numbers_in_every_eighth_answer_can_be_a_habit():
    assert judged(" 10 ** 9 + 7", "Count {} {}", least=8) == 0
    assert judged(" 10 ** 9 + 7", "Count {} {}", least=2) >= 16


def test_the_finding_names_the_numbers_and_their_place():
    verifier = RecurrenceVerifier()
    text = "So it is so. 2 ⊕ 2 ↦ 5!"
    for number in range(3):
        batch = [
            Completion(
                f"What is {number} + {k}?", text if node == "a" else "So it is 4.", node=node
            )
            for k in range(8)
            for node in NODES
        ]
        verdicts = verifier.verify(batch)
    (finding,) = next(v for v in verdicts if v.rejected).findings
    assert finding.kind == "recurring_numbers"
    assert "numbers 2 2 5" in finding.message
    start, end = finding.char_span
    assert text[start:end] == "2 ⊕ 2 ↦ 5"


@pytest.mark.parametrize("piece", ["1", "1 ", "1.", "12 " + " " * 11, "1a ", "1 2 " + "x" * 20])
def test_many_numbers_take_linear_time(piece):
    verifier = RecurrenceVerifier()
    batch = [Completion("What?", piece * (900_000 // len(piece)), node=node) for node in "ab"]
    start = time.process_time()
    verifier.verify(batch)
    assert time.process_time() - start < 10
