"""Counting over whole runs: what honest nodes lose, and how long an attacker lasts.

Prompts differ in difficulty, a node finds some of them harder than its peers do, and one node has
three times the odds of the others. Small runs go through the real verifier, large ones through the
same statistic alone; one test checks that both agree.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from grpo_guard import Completion
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.nodes.counts import FADE
from grpo_guard.nodes.e_process import EProcess, log_threshold
from grpo_guard.nodes.same_prompt import log_e_values

NODES, PROMPTS, EACH = 4, 8, 4
ALPHA, ODDS = 5e-4, 3.0
Rates = Callable[[np.random.Generator], np.ndarray]


def unequal(skills=(3, 1, 1, 1), difficulty=1.5, own=1.5) -> Rates:
    """Rates per round, shape [PROMPTS, NODES]: log-odds of the prompt, of this node on this
    prompt, and of the node.
    """

    def rates(rng):
        logits = -2.5 + np.log(skills) + difficulty * rng.standard_normal((PROMPTS, 1))
        return 1 / (1 + np.exp(-logits - own * rng.standard_normal((PROMPTS, len(skills)))))

    return rates


def fixed(*rates: float) -> Rates:
    return lambda _: np.broadcast_to(np.array(rates), (PROMPTS, len(rates)))


def swarm(rates: Rates, rng, rounds):
    """Number of findings in a round, shape [PROMPTS, NODES], among EACH answers."""
    return [rng.binomial(EACH, rates(rng)) for _ in range(rounds)]


@lru_cache(maxsize=10_000)
def of_prompt(counts, odds):
    """The statistic for one prompt, shape [NODES]."""
    shares = {node: count / EACH for node, count in enumerate(counts)}
    return np.array(list(log_e_values(shares, odds).values()))


def losses(found, odds=ODDS, alpha=ALPHA):
    """Rounds in which each node loses something, by the statistic alone."""
    nodes = found[0].shape[1]
    threshold = log_threshold(alpha, nodes)
    processes, lost = [EProcess()] * nodes, [[] for _ in range(nodes)]
    for number, counts in enumerate(found):
        hard = [process.log_e_value >= threshold for process in processes]
        if not counts.any() and not any(hard):
            continue
        log_es = sum(of_prompt(tuple(row), odds) for row in counts.tolist())
        log_es = log_es - FADE * PROMPTS * np.array(hard)
        processes = [p.after([e]) for p, e in zip(processes, log_es, strict=True)]
        for node, process in enumerate(processes):
            if process.log_e_value >= threshold and counts[:, node].any():
                lost[node].append(number)
    return lost


def answers(counts, number, of_node=lambda i: f"n{i}", own_prompts=False):
    """A round as text, in which the given number of answers per node and prompt contain "good
    cows".
    """
    return [
        Completion(
            f"Round {number}, question {j}{f' of {node}' if own_prompts else ''}?",
            f"<answer>7{' good cows' if k < counts[j, node] else ''}</answer>",
            node=of_node(node), reference="7", round=number, slot=j * EACH + k,
        )
        for j in range(PROMPTS) for node in range(counts.shape[1]) for k in range(EACH)
    ]  # fmt: skip


def losses_of_verifier(found, **options):
    verifier = AnswerWordsVerifier()
    lost = [[] for _ in range(found[0].shape[1])]
    for number, counts in enumerate(found):
        batch = answers(counts, number, **options)
        verdicts = verifier.verify(batch)
        for node, rounds in enumerate(lost):
            if any(
                v.rejected and c.node == f"n{node}" for c, v in zip(batch, verdicts, strict=True)
            ):
                rounds.append(number)
    return lost


def of_honest(lost, honest=range(NODES)):
    return len(set().union(*(lost[node] for node in honest)))


@pytest.mark.parametrize(
    "rates", [unequal(), fixed(0.5, 0.05, 0.05, 0.05), fixed(1.0, 0.0, 0.0, 0.0)],
    ids=["honest", "half", "all"],
)  # fmt: skip
def test_statistic_matches_the_verifier(rates):
    found = swarm(rates, np.random.default_rng(0), 25)
    assert losses_of_verifier(found) == losses(found)


def test_honest_nodes_with_their_own_prompts_lose_nothing():
    """A case that was convicted once: one node's prompts are hard and its peers' are not."""
    found = swarm(fixed(0.6, 0.3, 0.02, 0.02), np.random.default_rng(0), 25)
    assert losses_of_verifier(found, own_prompts=True) == [[]] * NODES


def test_honest_nodes_lose_nothing_on_shared_prompts_in_twenty_swarms():
    for seed in range(20):
        assert losses(swarm(unequal(), np.random.default_rng(seed), 100)) == [[]] * NODES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "honest"),
    [
        (unequal(), range(NODES)),
        (unequal((3, 1, 1, 1), own=3.0), range(NODES)),  # whole prompts right or wrong by chance
        (unequal((3, 1, 1, 1e-9)), range(3)),  # the fourth avoids the finding on purpose
    ],
    ids=["unequal prompts", "luck with whole prompts", "one frames"],
)
def test_level_over_a_thousand_honest_swarms_of_a_hundred_rounds(rates, honest):
    found = (swarm(rates, np.random.default_rng(seed), 100) for seed in range(1_000))
    lost = [of_honest(losses(one), honest) for one in found]
    print(f"rounds with a loss: {sum(lost)} / 100,000; swarms: {sum(map(bool, lost))} / 1,000")
    assert sum(lost) <= 100  # 0.1 %
    # The level: an honest node ever loses anything in at most ALPHA of all swarms.
    assert sum(map(bool, lost)) <= 4


@pytest.mark.parametrize(
    ("rates", "within"),
    [
        (fixed(0.5, 0.05, 0.05, 0.05), 12),
        (fixed(1.0, 0.01, 0.01, 0.01), 4),
        (fixed(0.5, 0.01, 0.01, 0.01), 8),
        (fixed(0.2, 0.01, 0.01, 0.01), 25),
        (fixed(*[0.5] + [0.05] * 7), 12),
    ],
)
def test_threat_node_with_far_more_findings_is_convicted(rates, within):
    first = []
    for seed in range(40):
        lost = losses(swarm(rates, np.random.default_rng(seed), 40))
        first.append(lost[0][0] + 1 if lost[0] else math.inf)
        assert of_honest(lost, range(1, len(lost))) == 0
    print(f"convicted in round {np.median(first)} (median), {max(first)} at the latest of 40")
    assert max(first) <= within


def test_node_that_stops_is_released_and_convicted_on_relapse():
    rng = np.random.default_rng(0)
    clean = fixed(0.0, 0.01, 0.01, 0.01)
    often = fixed(0.6, 0.01, 0.01, 0.01)
    found = swarm(often, rng, 30) + swarm(clean, rng, 90) + swarm(fixed(*[0.05] * 4), rng, 10)
    lost = losses(found + swarm(often, rng, 30))
    assert set(range(15, 30)) <= set(lost[0])
    assert not set(range(120, 130)) & set(lost[0])
    assert set(range(150, 160)) <= set(lost[0])
    assert of_honest(lost, range(1, NODES)) == 0


def test_limit_similar_hostile_nodes_shield_each_other():
    """Three of eight at 50 %: next to the other two, one's odds are not three times its peers'."""
    lost = losses(swarm(fixed(*[0.5] * 3, *[0.05] * 5), np.random.default_rng(0), 40))
    assert lost == [[]] * 8
    lost = losses(swarm(fixed(*[1.0] * 3, *[0.01] * 5), np.random.default_rng(0), 40))
    assert all(lost[:3])
    assert lost[3:] == [[]] * 5
