"""A round's work through pools of workers: a deterministic simulation of queues.

Every part of a node's work passes the stages in order; a stage's pool is first come, first served.
All parts arrive when the round ends, in an order drawn once, which is the worst case for waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the work.

    Args:
        name: For the table.
        pool: The pool whose workers do it; stages may share a pool.
        seconds: Time of each part on one worker, shape [parts].
    """

    name: str
    pool: str
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round.

    Args:
        seconds: Until the last part is done.
        done: When each part is done, shape [parts].
        busy: By pool, the share of its workers' time that is work.
        work: By stage, seconds of work in all.
    """

    seconds: float
    done: Seconds
    busy: Mapping[str, float]
    work: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The pool that is busiest."""
        return max(self.busy, key=lambda pool: self.busy[pool])


def play(stages: Sequence[Stage], workers: Mapping[str, int], seed: int = 0) -> Round:
    """One round.

    Args:
        stages: At least one, all with the same number of parts.
        workers: Number of workers per pool, >= 1.
        seed: Seed of the order in which the parts arrive.
    """
    parts = len(stages[0].seconds)
    order = np.random.default_rng(seed).permutation(parts)
    free = {pool: [0.0] * count for pool, count in workers.items()}
    done = np.zeros(parts)
    # (ready, position in the queue, stage, part): among the ready ones, the first in line.
    waiting = [(0.0, place, 0, int(part)) for place, part in enumerate(order)]
    heapq.heapify(waiting)
    count = parts
    while waiting:
        ready, _, k, part = heapq.heappop(waiting)
        stage = stages[k]
        start = max(ready, heapq.heappop(free[stage.pool]))
        end = start + float(stage.seconds[part])
        heapq.heappush(free[stage.pool], end)
        if k + 1 < len(stages):
            heapq.heappush(waiting, (end, count, k + 1, part))
            count += 1
        else:
            done[part] = end
    work = {stage.name: float(stage.seconds.sum()) for stage in stages}
    total = float(done.max())
    busy = {
        pool: sum(float(s.seconds.sum()) for s in stages if s.pool == pool) / (total * number)
        for pool, number in workers.items()
    }
    return Round(total, done, busy, work)
