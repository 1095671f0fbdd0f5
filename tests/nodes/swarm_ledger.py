"""A swarm that is recorded in a ledger: batches with their verdicts."""

import random

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding, accept, reject
from grpo_guard.core.verifier import CompletionVerifier

NODES = ("ann", "bob", "cid", "mal")
ODD = Finding("odd", "an odd thing")


def played(round, bad=(), *, nodes=NODES, prompts=8, each=3, own_prompts=False):
    """A round in which the given (node, index) are rejected; index counts a node's completions."""
    batch, verdicts = [], []
    for node in nodes:
        for i in range(prompts * each):
            prompt = f"{node if own_prompts else ''} {round} {i // each}"
            batch.append(Completion(prompt, f"{node} {i}", node=node, round=round, slot=i % each))
            is_bad = (node, i) in bad
            verdicts.append(reject("says", findings=(ODD,)) if is_bad else accept("says"))
    return batch, verdicts


def one_in(every, node="mal", count=24, chance=None):
    """Choose one in so many of a node's completions."""
    chance = chance or random.Random(0)
    return {(node, i) for i in range(count) if chance.random() < 1 / every}


class Says(CompletionVerifier):
    """Rejects texts that contain "bad"."""

    name = "says"

    def verify(self, batch):
        return [
            reject("says", findings=(ODD,)) if "bad" in c.text else accept("says") for c in batch
        ]


def play(ledger, rounds, every=12, node="mal", start=0, **form):
    chance = random.Random(start)
    for t in range(start, start + rounds):
        ledger.record(*played(t, one_in(every, node, chance=chance) if every else (), **form))


def counts(ledger):
    return {s.node: (s.judged, s.rejected, s.abstained) for s in ledger.standings()}
