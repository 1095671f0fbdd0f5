"""The states clear, soft and hard, and the way back."""

from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.nodes.standing import MOST, Mark, State, updated


def after(bars, *, half_life=10.0, most=State.HARD):
    """Marks after rounds with the given evidence; any rise counts as renewed."""
    mark, marks, before = Mark(), [], 0.0
    for now, value in enumerate(bars):
        mark = updated(mark, value, rose=value > before, now=now, half_life=half_life, most=most)
        marks.append(mark)
        before = value
    return marks


def test_growing_evidence_makes_a_node_soft_then_hard():
    marks = after([0.1, 0.6, 0.8, 1.1])
    assert [m.state for m in marks] == [State.CLEAR, State.SOFT, State.SOFT, State.HARD]
    assert [m.since for m in marks] == [0, 1, 1, 3]


def test_node_that_stops_is_released_and_then_forgotten():
    states = [m.state for m in after([1.1, *[1.0] * 40])]
    assert states[10] is State.HARD
    assert states[13] is State.SOFT
    assert states[30] is State.CLEAR


def test_node_that_continues_stays_hard():
    assert after([1.0 + 0.01 * t for t in range(200)])[-1].state is State.HARD


def test_release_does_not_depend_on_past_evidence():
    states = [m.state for m in after([1000.0, *[0.0] * 60])]
    assert states[29] is State.HARD
    assert states[31] is State.SOFT


def test_empty_slots_never_make_a_node_hard():
    assert after([5.0], most=State.SOFT)[0].state is State.SOFT


@given(st.lists(st.floats(-100, 100), max_size=60))
def test_levels_are_bounded_and_clear_needs_no_pardon(bars):
    for mark in after(bars):
        assert 0 <= mark.level <= MOST
        if max(bars) < 0.5:
            assert mark.state is State.CLEAR
