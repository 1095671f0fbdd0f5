"""The cost of the ledger with many nodes: time per record, memory, and bytes on disk.

Each measurement runs in its own process, because freed memory is not returned immediately. Seconds
are CPU seconds of that process, no matter what else the machine is doing.
"""

import multiprocessing
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import accept, reject
from grpo_guard.evals.studies.harness import process_memory
from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.evidence import Comparison
from grpo_guard.nodes.store import NodeStore

BATCH = 1_000
FEW = 8
REJECTED = 0.001
T = TypeVar("T")


def recorded(nodes: int, each: int, rounds: int) -> dict[str, Any]:
    """Measure `EvidenceLedger.record` over rounds in batches of `BATCH`, one in 1,000 rejected.

    Args:
        each: Number of completions per node and round.
        rounds: Number of rounds; the first two close none, so only the last shows the cost.
    """
    return _alone(_recorded, nodes, each, rounds)


def compared(nodes: int, rounds: int, present: float = 1.0) -> dict[str, Any]:
    """Measure only the evidence, in memory, for rounds of 10 completions per node.

    One node in 100 has a completion rejected. ``present`` is the share of nodes that send work in a
    round, drawn afresh for each round.
    """
    return _alone(_compared, nodes, rounds, present)


def scale(nodes: int, records: int, rounds: int) -> dict[str, Any]:
    """Record as many completions from many nodes and from few; return the costs and their ratio."""
    few = recorded(FEW, max(1, records // FEW), rounds)
    many = recorded(nodes, max(1, records // nodes), rounds)
    last = "microseconds_per_record_in_last_round"
    return {"few": few, "many": many, "ratio": round(many[last] / few[last], 2)}


def _recorded(nodes: int, each: int, rounds: int) -> dict[str, Any]:
    chance, either = random.Random(0), (accept("verifier"), reject("verifier"))
    spent: list[float] = []
    with TemporaryDirectory() as folder:
        ledger = NodeStore(folder, max_nodes=nodes).ledger()
        before, most, records = process_memory("VmHWM"), 0.0, 0
        for t in range(rounds):
            work = ((k, i) for k in range(nodes) for i in range(each))
            took, records = 0.0, nodes * each
            while batch := [
                Completion(f"{t} {i}", f"{k} {i}", node=f"node {k}", round=t, slot=i)
                for k, i in islice(work, BATCH)
            ]:
                verdicts = [either[chance.random() < REJECTED] for _ in batch]
                started = time.process_time()
                ledger.record(batch, verdicts)
                one = time.process_time() - started
                took, most = took + one, max(most, one)
            spent.append(took)
        assert ledger.degraded is None
        held = process_memory("VmHWM") - before
        ledger.close()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    return {
        "nodes": nodes,
        "records_per_round": records,
        "rounds": rounds,
        "microseconds_per_record": round(sum(spent) / rounds / max(records, 1) * 1e6, 1),
        "microseconds_per_record_in_last_round": round(spent[-1] / max(records, 1) * 1e6, 1),
        "longest_call_seconds": round(most, 2),
        "most_memory_bytes": held,
        "file_bytes": size,
    }


def _compared(nodes: int, rounds: int, present: float) -> dict[str, Any]:
    chance, comparison = random.Random(0), Comparison(salt=b"study")
    before = process_memory("VmHWM")
    plain, bad = Tally(10, 0, 0), Tally(10, 1, 1)
    names = [str(k) for k in range(nodes)]
    added = judged = 0.0
    for t in range(rounds):
        tallies = {
            name: bad if chance.random() < 0.01 else plain
            for name in names
            if present == 1 or chance.random() < present
        }
        started = time.process_time()
        comparison.add(tallies)
        between = time.process_time()
        if t >= rounds - 2:
            comparison.evidence()
        added, judged = between - started, time.process_time() - between
    return {
        "nodes": nodes,
        "rounds": rounds,
        "present": present,
        "seconds_to_add_last_round": round(added, 2),
        "seconds_to_judge_last_round": round(judged, 2),
        "most_memory_bytes": process_memory("VmHWM") - before,
    }


def _alone(work: Callable[..., T], *arguments: Any) -> T:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()
