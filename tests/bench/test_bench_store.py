"""Cost of keeping recurring phrases in a file: one batch of 64 from four nodes, after 40 batches.

Run with ``pytest tests/bench/test_bench_store.py``.
"""

import random

import pytest

from grpo_guard import Completion
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.nodes.store import NodeStore

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdgklmnprst"]


def batch(round, rng):
    return [
        Completion(
            prompt=f"Question {round}-{i // 8}",
            text=" ".join(rng.choices(WORDS, k=200)),
            node=f"node-{i % 4}",
            round=round,
        )
        for i in range(64)
    ]


@pytest.mark.parametrize("swarm", ["heterogeneous", "homogeneous"])
@pytest.mark.parametrize("kept", ["in the object", "in a file"])
def test_bench_store(benchmark, tmp_path, kept, swarm):
    rng = random.Random(0)
    store = NodeStore(tmp_path) if kept == "in a file" else None
    verifier = RecurrenceVerifier(swarm=swarm, store=store)
    for round in range(40):
        verifier.verify(batch(round, rng))
    rounds = iter(range(40, 10_000))
    verdicts = benchmark.pedantic(
        verifier.verify, setup=lambda: ((batch(next(rounds), rng),), {}), rounds=20
    )
    assert all(verdict.accepted for verdict in verdicts)
