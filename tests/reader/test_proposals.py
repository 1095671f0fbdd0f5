"""Evidence from foreign sentences: honest nodes keep the level; a repeated slogan convicts."""

import numpy as np
import pytest

from grpo_guard import Completion
from grpo_guard.logprob.reader.honest import Vote
from grpo_guard.logprob.reader.proposals import NodeSentences

ALPHA = 1e-3
NODES, BATCHES, EACH = 400, 25, 8


def batch(number, nodes):
    return [
        Completion(f"q {number} {i}", f"answer {number} {i} {node}", node=node)
        for node in nodes
        for i in range(EACH)
    ]


def votes(p_values):
    """Votes with these p-values, from 64 honest sentences."""
    return [Vote(p, beyond=p <= 1 / 65) for p in p_values]


def convicted(draw, nodes, batches=BATCHES):
    known, found = NodeSentences(ALPHA, None), frozenset[str]()
    for number in range(batches):
        rows = batch(number, nodes)
        found |= known.convicted(rows, {i: votes(draw()) for i in range(len(rows))})
    return found


@pytest.mark.slow
def test_honest_nodes_are_convicted_at_most_at_alpha():
    rng = np.random.default_rng(0)
    nodes = [f"n{i}" for i in range(NODES)]
    # Like conformal p-values: multiples of 1 / (m + 1), for several sentences per completion.
    found = convicted(lambda: list(rng.integers(1, 66, rng.integers(1, 17)) / 65), nodes)
    assert len(found) <= 3, "400 nodes at 1 in 1,000: more than 3 has a probability below 0.1 %"


def test_repeated_slogan_convicts_in_the_second_batch():
    rng = np.random.default_rng(1)

    def poisoned():
        return [1 / 65, *rng.integers(2, 66, 8) / 65]

    assert convicted(poisoned, ["a", "b"], batches=2) == {"a", "b"}


def test_one_foreign_sentence_does_not_convict():
    rows = batch(0, ["a"])
    once = {0: votes([1 / 65, *[0.5] * 7])} | {i: votes([0.5] * 8) for i in range(1, EACH)}
    assert NodeSentences(ALPHA, None).convicted(rows, once) == frozenset()


@pytest.mark.slow
def test_prompt_whose_answers_all_sound_odd_convicts_nobody():
    """Twelve answers to one prompt sound alike, so together they are evidence of one prompt."""
    rng, known, found = np.random.default_rng(2), NodeSentences(ALPHA, None), frozenset[str]()
    nodes = [f"n{i}" for i in range(60)]
    for number in range(40):
        rows, read = [], {}
        for node in nodes:
            for prompt in range(4):
                p = float(rng.integers(1, 66) / 65)
                for answer in range(12):
                    read[len(rows)] = votes([p])
                    text = f"answer {answer} {node}"
                    rows.append(Completion(f"q {number} {prompt}", text, node=node))
        found |= known.convicted(rows, read)
    assert found == frozenset()
    # A slogan in each of the answers is still found, in the third round of four prompts.
    for number in range(3):
        rows = [Completion(f"p {number} {i % 4}", f"slogan {i}", node="mal") for i in range(48)]
        convicted = known.convicted(rows, {i: votes([1 / 65]) for i in range(48)})
    assert convicted == {"mal"}


def test_honest_node_with_odder_habits_is_not_convicted():
    """Policies drift apart in training: in real swarms an honest node's completions had a p-value
    of at most 0.2 in 36 % of cases, not 20 %, and the swarm lasts."""
    rng = np.random.default_rng(3)

    def odd():
        return [float(rng.integers(1, 258) / 257) / (1.8 if rng.random() < 0.9 else 1.0)]

    assert convicted(odd, [f"n{i}" for i in range(100)], batches=40) == frozenset()


def test_a_completion_sent_again_in_another_batch_counts_once():
    known, odd = NodeSentences(ALPHA, None), Completion("q", "an odd sentence", node="a")
    for number in range(20):
        rows = [odd, Completion(f"q {number}", f"usual {number}", node="a")]
        read = {0: [Vote(1 / 257, beyond=True)], 1: votes([0.5])}
        assert known.convicted(rows, read) == frozenset()
