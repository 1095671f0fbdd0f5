"""Batches of a guard with several on their way to workers, judged in their order.

Plain actors, and not Ray Data: completions of one prompt are judged together wherever they stand
in a file, and what remembers nodes must see batches in the order of the file. To Ray Data the
first is a shuffle of the whole file, and the second a single actor at its end, which could neither
go on behind the last verdict that was written nor say how much of the file is in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from grpo_guard.admission import Known
from grpo_guard.completion import Completion
from grpo_guard.distributed.verifier import RayVerifier
from grpo_guard.fitting import require_fitting
from grpo_guard.guard import Guard
from grpo_guard.spot_checks import SpotCheck
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Verdict
from grpo_guard.verifier import CompletionVerifier

T = TypeVar("T")
BATCHES_A_WORKER: Final = 2
"""On their way: one is read while the next waits beside it."""


def on_ray(guard: Guard, **options: Any) -> RayVerifier:
    """Have the rules of a guard that is here already read texts in actors.

    Args:
        guard: Its verifier is replaced; what it remembers stays.
        **options: Of `RayVerifier`.

    Returns:
        The guard's verifier from now on; `RayVerifier.close` it when all is judged.

    Raises:
        ValueError: nothing in it can run there, or its policy pays for abstentions.
        RayMissingError, ClusterError: as `RayVerifier`.
    """
    there = RayVerifier.around(guard.verifier, **options)
    try:
        require_fitting(there, guard.policy)
    except ValueError:
        there.close()
        raise
    guard.verifier = there
    return there


def judged(
    guard: Guard, batches: Iterable[tuple[T, Sequence[Completion]]]
) -> Iterator[tuple[T, list[Completion], list[Verdict]]]:
    """Each batch as `Guard.judge` judges it, one after the other.

    Where the guard holds `RayVerifier`s outside spot checks, they are shown the next batches
    meanwhile; no more than `BATCHES_A_WORKER` for each worker are in memory.

    Args:
        guard: Of any kind.
        batches: Something of the caller's with each.
    """
    there = list(_asked_of_all(guard.verifier))
    most = max((BATCHES_A_WORKER * one.workers for one in there), default=0)
    on_their_way: deque[tuple[T, Known]] = deque()

    def next_one() -> tuple[T, list[Completion], list[Verdict]]:
        label, known = on_their_way.popleft()
        batch, verdicts = guard.recorded(known, supervised(guard.verifier, known.open))
        for one in there:
            one.forget(known.open)
        return label, batch, verdicts

    for label, batch in batches:
        known = guard.admit(batch)
        for one in there:
            one.begin(known.open)
        on_their_way.append((label, known))
        if len(on_their_way) > most:
            yield next_one()
    while on_their_way:
        yield next_one()


def _asked_of_all(verifier: CompletionVerifier) -> Iterator[RayVerifier]:
    """Those within that are shown whole batches: what is checked by sample is not sent ahead, or
    the operator would pay for all of it."""
    if isinstance(verifier, RayVerifier):
        yield verifier
    elif not isinstance(verifier, SpotCheck):
        for member in getattr(verifier, "members", ()):
            yield from _asked_of_all(member)
