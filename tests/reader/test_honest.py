"""The reference distribution: a minority of nodes cannot shift it, and honest spans are rarely
foreign.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.logprob.reader.foreignness import MOST_TOKENS, Foreignness
from grpo_guard.logprob.reader.honest import FEWEST, MOST, HonestSpans, Vote


def spans(rng, n, *, shift=0.0, tokens=8):
    return [Foreignness.of(rng.normal(shift, 1.0, tokens)) for _ in range(n)]


def known(rng, nodes, n=100, **shifts):
    honest = HonestSpans()
    for node in nodes:
        for span in spans(rng, n, shift=shifts.get(node, 0.0)):
            honest.add(node, span)
    return honest


def test_no_decision_before_enough_spans_are_known():
    rng = np.random.default_rng(0)
    assert known(rng, "ab", FEWEST - 1).vote("a", spans(rng, 1)[0]) is None
    assert known(rng, "a", 100).vote("a", spans(rng, 1)[0]) is None
    assert known(rng, "abc", FEWEST).vote("a", spans(rng, 1)[0]) is not None


def test_one_node_does_not_decide_alone():
    rng = np.random.default_rng(0)
    for sender in ("a", "d", None):
        found = spans(rng, 1)[0]
        first = known(rng, "a", 300, a=8.0)
        for excused in (False, True):
            assert first.vote(sender, found, excused=excused) is None


def test_senders_without_a_name_are_no_measure():
    rng = np.random.default_rng(0)
    first, found = known(rng, [None], 300), spans(rng, 1)[0]
    assert first.wanted(None) == 0
    assert first.vote(None, found) is None
    for span in spans(rng, 100):
        first.add("b", span)
    assert first.vote("a", found) is None
    slogan = Foreignness.of(np.full(8, 4.0))
    assert known(rng, "abc").vote(None, slogan).p_value < 0.02


@pytest.mark.parametrize("level", [0.05, 0.2])
def test_honest_spans_are_foreign_at_most_at_the_level(level):
    rng = np.random.default_rng(1)
    honest = known(rng, "abcd", 200)
    p = [honest.vote("a", span).p_value for span in spans(rng, 2000)]
    assert np.mean(np.array(p) <= level) <= level + 0.02


def test_nothing_is_extrapolated_beyond_the_measure():
    """A policy that writes nonsense now and then has a longer tail than its measure shows."""
    rng = np.random.default_rng(2)
    honest = known(rng, "abcd", 200)
    p = np.array([honest.vote("a", span, excused=True).p_value for span in spans(rng, 5000)])
    for level in (0.05, 0.02):
        assert np.mean(p <= level) <= 1.5 * level
    nonsense = Foreignness.of(np.full(8, 40.0))
    for excused in (False, True):
        assert honest.vote("a", nonsense, excused=excused) == Vote(1 / 201, beyond=True)
    usual = Foreignness.of(np.full(8, 0.1))
    assert not honest.vote("a", usual).beyond


@pytest.mark.parametrize(("nodes", "hostile"), [("abc", "c"), ("abcd", "d"), ("abcde", "de")])
def test_minority_can_neither_excuse_nor_accuse(nodes, hostile):
    slogan, usual = Foreignness.of(np.full(8, 4.0)), Foreignness.of(np.full(8, 0.1))
    accusing = known(np.random.default_rng(4), nodes, 100, **dict.fromkeys(hostile, -8.0))
    assert accusing.vote("a", usual).p_value > 0.2
    excusing = known(np.random.default_rng(3), nodes, 100, **dict.fromkeys(hostile, 8.0))
    assert excusing.vote(hostile[0], slogan).p_value < 0.02


def test_odd_style_is_excused_and_poison_is_not():
    rng = np.random.default_rng(5)
    odd = known(rng, "abcd", 200, a=0.3)
    raw = np.mean([odd.vote("a", s).p_value <= 0.05 for s in spans(rng, 500, shift=0.3)])
    excused = np.mean(
        [odd.vote("a", s, excused=True).p_value <= 0.05 for s in spans(rng, 500, shift=0.3)]
    )
    assert raw > 0.12
    assert excused < 0.7 * raw
    poison = known(rng, "abcd", 200, a=4.0)
    assert poison.vote("a", Foreignness.of(np.full(8, 4.0)), excused=True).p_value < 0.01


def test_latest_spans_count():
    rng = np.random.default_rng(6)
    honest = known(rng, "bc", MOST, b=9.0, c=9.0)
    for node in "bc":
        for span in spans(rng, MOST):
            honest.add(node, span)
    assert honest.vote("a", Foreignness.of(np.full(8, 4.0))).p_value < 0.01


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_p_value_is_valid_at_any_length(tokens, seed):
    rng = np.random.default_rng(seed)
    honest = known(rng, "abc", 64)
    found = spans(rng, 1, tokens=tokens)[0]
    for excused in (False, True):
        assert 0 < honest.vote("a", found, excused=excused).p_value <= 1
    assert tokens <= 60 < 3 * MOST_TOKENS


def test_number_of_names_is_bounded():
    rng = np.random.default_rng(7)
    honest = HonestSpans()
    for i in range(2000):
        honest.add(f"n{i}", spans(rng, 1)[0])
    assert len(honest._nodes) <= 256


def test_invented_names_displace_no_reference():
    rng = np.random.default_rng(8)
    honest = known(rng, "abcd", 40)
    for i in range(2000):
        honest.add(f"n{i}", spans(rng, 1)[0])
    assert honest.vote("a", spans(rng, 1)[0]) is not None


def test_text_around_a_foreign_run_does_not_excuse_it():
    slogan, usual = np.full(6, 4.0), np.full(20, -3.0)
    alone, hidden = Foreignness.of(slogan), Foreignness.of(np.concatenate([usual, slogan, usual]))
    assert hidden.runs[-1] == alone.runs[-1] == 24.0
    honest = known(np.random.default_rng(9), "abcd", 100)
    assert honest.vote("a", hidden).p_value < 0.02


def test_small_measures_are_no_evidence():
    """P-values from one measure of twenty depend on each other: their product convicted 1 in 50."""
    rng = np.random.default_rng(8)
    span = spans(rng, 1)[0]
    for size, votes in ((20, False), (64, True)):
        honest = known(rng, "bcd", size)
        assert honest.vote("a", span) is not None
        assert (honest.vote("a", span, excused=True) is not None) is votes
