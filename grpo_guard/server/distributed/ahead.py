"""Keep several batches in flight to workers, and judge them in order.

Uses plain actors rather than Ray Data: completions of one prompt are judged together wherever they
are in a file, and rules that keep per-node state must see batches in file order. In Ray Data,
grouping by prompt would shuffle the whole file, and the rules would run in one actor at the end,
which could neither resume after the last written verdict nor report how much of the file is in
memory.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard import Guard
from grpo_guard.guard.admission import AdmittedBatch
from grpo_guard.guard.policy_checks import require_fitting
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.server.distributed.verifier import RayVerifier

T = TypeVar("T")
BATCHES_A_WORKER: Final = 2
"""Number of batches in flight per worker, which reads one batch while the next waits."""


def on_ray(guard: Guard, **options: Any) -> RayVerifier:
    """Move the text-reading rules of a guard to actors; the guard's memory stays in this process.
    Returns the guard's new verifier, made with the options of `RayVerifier`, whose errors are
    raised, too; call its ``close`` at the end. Raises ValueError if none of the guard's rules can
    run in actors, or its policy pays for abstentions."""
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
    """Judge labelled batches one after the other, each as `Guard.judge` does.

    If the guard has a number of `Workers`, or contains `RayVerifier`s outside spot checks, these
    start on the next batches in the meantime; at most `BATCHES_A_WORKER` per worker are in memory.
    """
    there = list(_batch_verifiers(guard.verifier))
    here = guard.workers
    most = max(BATCHES_A_WORKER * n for n in (here.number or 0, *(one.workers for one in there)))
    in_flight: deque[tuple[T, AdmittedBatch]] = deque()

    def next_one() -> tuple[T, list[Completion], list[Verdict]]:
        label, known = in_flight.popleft()
        with guard.reading():
            found = supervised(guard.verifier, known.unsettled)
        batch, verdicts = guard.record_verdicts(known, found)
        for one in there:
            one.forget(known.unsettled)
        here.forget(known.unsettled)
        return label, batch, verdicts

    for label, batch in batches:
        known = guard.admit(batch)
        for one in there:
            one.begin(known.unsettled)
        if here.number:
            here.begin(guard.verifier, known.unsettled)
        in_flight.append((label, known))
        if len(in_flight) > most:
            yield next_one()
    while in_flight:
        yield next_one()


def _batch_verifiers(verifier: CompletionVerifier) -> Iterator[RayVerifier]:
    """Yield the Ray verifiers inside a verifier that see whole batches. Spot checks are not sent
    ahead; otherwise the operator would pay for checking everything."""
    if isinstance(verifier, RayVerifier):
        yield verifier
    elif not isinstance(verifier, SpotCheck):
        for member in getattr(verifier, "members", ()):
            yield from _batch_verifiers(member)
