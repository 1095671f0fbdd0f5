"""Claims that peers send along with their texts in GenRL, and their untrusted questions."""

import itertools
import tracemalloc

import pytest

from grpo_guard import CompletionVerifier
from grpo_guard.adapters.genrl.trees import Tree
from grpo_guard.core.verdict import accept, reject
from tests.genrl.one_round import GOOD, OTHER, QUESTION, G, play, tree
from tests.helpers.hostile_numbers import lists, numbers


def claiming(ids):
    return tree(metadata={"grpo_guard": {"completion_ids": ids}})


def test_hostile_claims_do_not_affect_honest_trees():
    for value in (*numbers(), *lists(G), [[n] * 3 for n in numbers()[:G]]):
        played = play({"bob": tree(), "eve": claiming(value)})
        assert {"bob", "me"} <= set(played.agents)
        assert played.rewards("bob") == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("ids", [range(3 * 10**7), itertools.count(), iter(int, 1)])
def test_endless_ids_cost_nothing(ids):
    (batch,) = claiming([ids] * G).items()
    eve = Tree("eve", batch[0], 0, batch[1][0], prompt=OTHER)
    tracemalloc.start()
    rows = eve.rows(0)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000  # reported case: 1.1 GB
    tracemalloc.stop()
    assert all(row.was_repaired and row.completion.node == "eve" for row in rows)


class Excused(CompletionVerifier):
    """Rejects what the trusted prompt does not ask for."""

    name = "excused"
    batches = ()

    def verify(self, batch):
        self.batches = [*self.batches, list(batch)]
        return [(accept if "stamps" in c.trusted_prompt_text else reject)(self.name) for c in batch]


def test_question_of_a_peer_is_not_trusted():
    verifier = Excused()
    asked = QUESTION.replace("sell", "buy")
    peers = {"bob": tree(question=QUESTION, answer="2"), "eve": tree(question=asked)}
    played = play(peers, verifier=verifier)
    trusted = {c.node: c.prompt_trusted for c in verifier.batches[0]}
    assert trusted == {"me": True, "bob": True, "eve": False}
    assert played.agents == ["bob", "me"]
    assert len(GOOD) == G
