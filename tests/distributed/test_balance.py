"""How a batch is split into parts, and a lost part into smaller ones."""

from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.core.completion import Completion
from grpo_guard.guard.workers.ticket import (
    MOST_COMPLETIONS,
    MOST_LOST,
    MOST_TOKENS,
    MOST_TRIES,
    Part,
    Ticket,
    balanced,
    halves,
    weight,
)

WEIGHTS = st.lists(st.integers(1, MOST_TOKENS // 2), max_size=60)


@given(WEIGHTS, st.integers(1, 9))
def test_each_position_is_in_one_part_and_parts_are_balanced(weights, workers) -> None:
    parts = balanced(weights, workers)
    assert sorted(place for part in parts for place in part) == list(range(len(weights)))
    assert all(part == sorted(part) and part for part in parts)
    if parts:
        loads = [sum(weights[i] for i in part) for part in parts]
        # Graham's bound: at most 4/3 of the optimum, which is at least the mean and the heaviest
        # item.
        assert max(loads) <= 4 / 3 * max(sum(weights) / len(parts), *weights) + max(weights) / 2


@given(st.integers(0, 5 * MOST_COMPLETIONS), st.integers(1, 4))
def test_no_part_is_too_large(count, workers) -> None:
    parts = balanced([1] * count, workers)
    assert all(len(part) <= MOST_COMPLETIONS for part in parts)
    assert len(parts) >= min(count, workers)


def test_weight_of_a_text_does_not_depend_on_its_ids() -> None:
    assert weight(Completion("q" * 400, "x" * 4_000, completion_ids=[1])) == 1_101
    assert weight(Completion("q", "x", completion_ids=[1] * 50, prompt_ids=[1] * 20)) == 71


@given(st.lists(st.sampled_from("abc") | st.none(), min_size=2, max_size=30))
def test_lost_part_is_split_between_authors_first(authors) -> None:
    first, second = halves(range(len(authors)), authors)
    assert sorted(first + second) == list(range(len(authors)))
    assert first
    assert second
    if len(set(authors)) > 1:
        assert not {authors[i] for i in first} & {authors[i] for i in second}


def tries_of(ticket: Ticket, deadly: set[int]) -> tuple[int, set[int]]:
    """Count the workers that a batch costs if some positions kill, and list what is given up."""
    waiting, lost, given_up = [Part(ticket, list(range(len(ticket.batch))))], 0, set()
    while waiting:
        part = waiting.pop(0)
        if not deadly & {*part.places}:
            ticket.put(part.places, [()] * len(part.places))
            continue
        lost += 1
        smaller = ticket.smaller(part)
        waiting += smaller
        if not smaller:
            given_up |= {*part.places}
    return lost, given_up


def test_deadly_completion_is_given_up_alone() -> None:
    ticket = Ticket(range(512), [f"n{i % 4}" for i in range(512)])
    lost, given_up = tries_of(ticket, {77})
    assert given_up == {77}
    assert lost <= 2 + 7 + MOST_TRIES


def test_deadly_node_costs_a_bounded_number_of_workers() -> None:
    ticket = Ticket(range(512), [f"n{i % 4}" for i in range(512)])
    bad = {i for i in range(512) if i % 4 == 1}
    lost, given_up = tries_of(ticket, bad)
    assert given_up == bad
    assert lost <= 3 * MOST_LOST
