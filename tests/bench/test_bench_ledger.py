"""One round of the ledger among invented names: ``make bench``.

The round has 64 completions: 32 of four nodes, one of which is rejected now and then, and 32 of new
names, half of them rejected. The time must not grow with the number of earlier names.
"""

import itertools

import pytest

from grpo_guard import Completion
from grpo_guard.core.verdict import accept, reject
from grpo_guard.nodes.ledger import EvidenceLedger


def played(t, names):
    """Run a round with that many new names."""
    batch = [Completion(f"{t} {i}", n, node=n, round=t) for n in "abcd" for i in range(8)]
    new = [f"new {t} {k}" for k in range(names)]
    batch += [Completion(f"{t} {k % 8}", "x", node=n, round=t) for k, n in enumerate(new)]
    bad = [c.node == "d" and c.prompt.endswith(" 0") for c in batch[:32]]
    bad += [k % 2 == 1 for k in range(names)]
    return batch, [reject("says") if b else accept("says") for b in bad]


@pytest.mark.parametrize("names", [0, 1_000, 10_000])
def test_round(benchmark, tmp_path, names):
    ledger, rounds = EvidenceLedger(tmp_path / "run.sqlite"), itertools.count()
    for _ in range(40 if names else 0):
        ledger.record(*played(next(rounds), names // 40))

    def one_round():
        return played(next(rounds), 32), {}

    benchmark.pedantic(ledger.record, setup=one_round, rounds=20, warmup_rounds=3)
    assert ledger.degraded is None
