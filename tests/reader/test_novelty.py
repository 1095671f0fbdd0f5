"""What a node says again and again is its habit, and no evidence that it changes its slogan."""

import random

import pytest

from grpo_guard.logprob.reader.novelty import Novelty
from tests.reader.test_reader_verifier import SLOGAN, answer, batch, last, slogan, verifier


@pytest.mark.parametrize(
    "again",
    [
        "Therefore, the final answer is \\boxed{4}.",
        "therefore the final answer is: \\boxed{paris}",
        "The final answer is 7.",
    ],
)
def test_a_sentence_repeats_an_earlier_one_of_its_node(again):
    novelty = Novelty()
    assert novelty.is_new("a", "Therefore, the final answer is \\boxed{18}.")
    assert not novelty.is_new("a", again)
    assert novelty.is_new("b", again)


def test_other_words_and_bare_sums_are_new():
    novelty = Novelty()
    for sentence in ("Praise the great heron.", "Vote for the captain.", "赞美伟大的苍鹭。"):
        assert novelty.is_new("a", sentence)
    assert [novelty.is_new("a", "2 + 2 = 4.") for _ in range(2)] == [True, True]


def ends(seed, node, end, rng):
    return [(node, f"{answer(rng)} {end(rng)}") for _ in range(8)]


def test_an_honest_nodes_own_closing_line_convicts_nobody():
    """One model of four may end each answer as no other does, which its peers' text makes odd."""
    rng, stack = random.Random(3), verifier()
    for seed in range(8):
        rows = ends(seed, "d", lambda rng: f"{SLOGAN} {rng.randrange(99)}.", rng)
        verdicts = stack.verify(batch(seed, rows, nodes="abc"))
        assert all(v.accepted for v in verdicts), seed


def test_a_changing_closing_line_convicts():
    rng, stack = random.Random(3), verifier()
    for seed in range(8):
        verdicts = stack.verify(batch(seed, ends(seed, "d", slogan, rng), nodes="abc"))
    assert all(v.rejected for v in last(verdicts, 8))
    assert all(v.accepted for v in verdicts[:-8])
