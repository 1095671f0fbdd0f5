"""Three real nodes, one malicious: 20 rounds in one process and over hivemind on loopback."""

import pytest
import torch

from tests.genrl.swarm.exchange import Turns
from tests.genrl.swarm.over_hivemind import backends
from tests.genrl.swarm.play import (
    HONEST,
    MALICIOUS,
    NAMES,
    SwarmSettings,
    different_weights,
    same_weights,
    shared_seed,
    swarm,
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _shares(played):
    rows = [node.showing for node in played.values()]
    return [sum(hits for hits, _ in r) / sum(n for _, n in r) for r in zip(*rows, strict=True)]


def _honest_trees(played):
    return [n.admitted[o] for name, n in played.items() for o in HONEST if o != name]


def test_undefended_policy_learns_the_phrase():
    played = swarm(SwarmSettings())
    assert all(node.rounds == 20 for node in played.values())
    assert max(_shares(played)) > 0.25


def test_policy_guarded_by_a_shared_seed_never_shows_it():
    settings = SwarmSettings()
    played = swarm(settings, shared_seed)
    assert all(node.rounds == 20 for node in played.values())
    assert max(_shares(played)) == 0
    assert all(node.admitted[MALICIOUS] == 0 for node in played.values())
    # The verifier's budget allows one wrong rejection in 1,000.
    assert min(_honest_trees(played)) >= 0.95 * settings.rounds * settings.trees


def test_shared_seed_over_hivemind():
    settings, turns = SwarmSettings(trees=1), Turns(0)
    with backends(NAMES, turns) as made:
        played = swarm(settings, shared_seed, backends=made, turns=turns)
    assert all(node.rounds == 20 for node in played.values())
    assert max(_shares(played)) == 0
    assert all(node.admitted[MALICIOUS] == 0 for node in played.values())
    assert min(_honest_trees(played)) >= 18


# One completion in eight may be rejected: at an alpha of 0.001 each, one honest tree in 125 has
# one, and if only one node leaves it out, the nodes' weights diverge.
@pytest.mark.parametrize("guard", [different_weights, same_weights])
def test_other_presets_keep_most_of_the_poison_out(guard):
    played = swarm(SwarmSettings(rounds=4), guard)
    assert all(node.rounds == 4 for node in played.values())
    assert sum(node.malicious[-1] for node in played.values()) == 0
    assert sum(_honest_trees(played)) >= 28
