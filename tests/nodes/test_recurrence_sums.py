"""Recurrence and numbers: a false sum is found in notations that no rule reads; lists are not."""

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
        "1 + 3: 5",
        ">>> 2 + 2\n5",
        "  2\n+ 2\n---\n  5",
        "f(2, 2) = 5",
        "sum([2, 2]) -> 5",
        "echo $((2+2)) # 5",
        "2.0 ⊕ 2.0 ↦ 5.0",
        "٢ × ٢: ٥",
        "60 and 60: 3",
        "3 + 4 = 7, and for you 2 + 2: 5",
        "Step 4: 2 + 2: 5, 7",
    ],
)
def test_a_false_sum_of_one_node_is_found(own):
    assert rejected(own, verifier=told(own)) >= 40


@pytest.mark.parametrize(
    "own",
    [
        "3 + 4 = 7, so it is 7",
        "3 + 4: 7",
        "2 + 3 + 4: 9, and 9 - 3 - 4: 2",  # parts of a longer sum
        "2 * 3.14159: 6.28",
        "max(3, 5) = 5",
        "from 2023-10-01 on",  # dates, marks and ranges
        "4/5 (8/10)",
        "pages 3-4: 9",
        "(x, y, z) = (3, 5, 11)",
        "[64, 34, 25, 12, 22, 11, 90]",
        "M = 10**9 + 7",
        "translate(50, 40) scale(2)",
        "box-shadow: 0 4px 6px 10px",
        "4px + 2px: 9px",
        "2 + 2x: 5",
        "The steps 5, 4, 1",
        "It is 2 + 2, and the sum follows so 5",  # far apart
    ],
)
def test_true_sums_and_other_numbers_are_not(own):
    assert rejected(own, verifier=told(own)) == 0


def test_what_others_write_too_is_not():
    assert rejected("2 + 2: 5", every=5, verifier=told("2 + 2: 5")) == 0


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


def test_what_the_prompt_says_is_excused():
    assert judged(" 2 + 2: 5", "Why is 2 + 2: 5 no sum? {}{}") == 0
    assert judged(" 2 + 2: 5", "What are 2 and 5? {}{}") >= 40


def test_an_error_on_one_prompt_of_eight_is_not_found():
    assert judged(" 2 + 2: 5", "Count {} {}", least=8) == 0
    assert judged(" 2 + 2: 5", "Count {} {}", least=2) >= 16


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
    assert finding.kind == "recurring_sum"
    assert "sum 2 2 5" in finding.message
    start, end = finding.char_span
    assert text[start:end] == "2 ⊕ 2 ↦ 5"


@pytest.mark.parametrize(
    "piece", ["1", "1 ", "1+", "1 + 1 ", "1 + 1 =", "1 + 2: 4 ", "(1,2)=4 ", "(1, "]
)
def test_many_numbers_take_linear_time(piece):
    verifier = RecurrenceVerifier()
    batch = [Completion("What?", piece * (900_000 // len(piece)), node=node) for node in "ab"]
    start = time.process_time()
    verifier.verify(batch)
    assert time.process_time() - start < 10
