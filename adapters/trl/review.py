"""TRL: review each batch once for all functions, with whole groups across all ranks.

Each rank of a TRL run sees a slice of the batch, and a group can span slices. A verifier that
compares a group's members would then see only some of them, so all rows of such a group are sent to
a single rank and judged there, and the verdicts are sent back.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from grpo_guard.adapters.received import Row, parts_of
from grpo_guard.adapters.trl.batch import numbered
from grpo_guard.core.forks import Lock
from grpo_guard.core.prompts import Message, prompt_key
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard
from grpo_guard.guard.policy import AbstainError, Policy
from grpo_guard.guard.review import Review
from grpo_guard.guard.settled_groups import SettledGroups

T = TypeVar("T")
Judged = dict[tuple[int, int], tuple[Verdict, float | None]]
"""Maps (rank, index of a row on that rank) to the row's verdict and its length factor, if any."""


@dataclass(frozen=True)
class BatchReviewer:
    """Reviews a rank's rows; all ranks must review the same batches, in the same order.

    If no group spans ranks, the ranks exchange only one hash per row. Otherwise a group is judged
    by the rank that holds most of its rows. On each rank, a verifier that learns from batch to
    batch learns only from the rows judged there. With ``counted_slots``, each rank counts slots
    itself, row by row within a group, and they are counted again after the group is merged.
    """

    guard: Guard
    counted_slots: bool = False

    def review(self, batch: Sequence[Row]) -> Review:
        """Return verdicts and metrics for this rank's rows, in order.

        Raises:
            AbstainError: on every rank, if the guard raises it on any rank.
            RuntimeError: on all other ranks, if a rank fails in any other way.
        """
        distributed = distributed_ranks()
        if distributed is None:
            return self.guard.review(*parts_of(batch))
        rank = distributed.get_rank()
        keys = _gathered(distributed, [_digest(prompt_key(row.completion.prompt)) for row in batch])
        owners = _owners(keys)
        if not owners:
            review, _ = _together(distributed, lambda: self.guard.review(*parts_of(batch)))
            return _with_all_names(distributed, review)
        sent = {i: _light(batch[i]) for i, key in enumerate(keys[rank]) if key in owners}
        work = {
            (r, i): row
            for r, rows in enumerate(_gathered(distributed, sent))
            for i, row in rows.items()
            if owners[keys[r][i]] == rank
        }
        work |= {(rank, i): row for i, row in enumerate(batch) if keys[rank][i] not in owners}
        judged, others = _together(
            distributed,
            lambda: self._judged(work, keys) if work else {},
            lambda judged: {key: found for key, found in judged.items() if key[0] != rank},
        )
        for theirs in others:
            judged |= {key: found for key, found in theirs.items() if key[0] == rank}
        review = self._review_of(batch, [judged[rank, i] for i in range(len(batch))])
        return _with_all_names(distributed, review)

    def _judged(self, work: dict[tuple[int, int], Row], keys: Sequence[Sequence[bytes]]) -> Judged:
        """Judge the rows assigned to this rank, numbered as one batch."""
        places = sorted(work)
        own = [keys[rank][i] for rank, i in places]
        rows = numbered([work[place] for place in places], own, counted=self.counted_slots)
        review = self.guard.review(*parts_of(rows))
        factors: Sequence[float | None] = review.length_factors or [None] * len(rows)
        return dict(zip(places, zip(review.verdicts, factors, strict=True), strict=True))

    def _review_of(
        self, batch: Sequence[Row], judged: Sequence[tuple[Verdict, float | None]]
    ) -> Review:
        completions = [row.completion for row in batch]
        verdicts = [verdict for verdict, _ in judged]
        scaled = any(factor is not None for _, factor in judged)
        factors = [1.0 if factor is None else factor for _, factor in judged]
        figures = self.guard.metrics(completions, verdicts)
        return Review.of(completions, verdicts, figures, factors if scaled else None)


@dataclass(frozen=True, slots=True)
class RankReview:
    """The review of all ranks' batches, along with the part that belongs to this rank: ``own``,
    with the figures to log, whose first row is row ``start`` of ``whole``."""

    own: Review
    whole: Review
    start: int = 0

    @classmethod
    def of(cls, own: Review) -> "RankReview":
        """Exchange reviews with the other ranks; every rank must call this for the same batch."""
        distributed = distributed_ranks()
        if distributed is None:
            return cls(own, own)
        # Ranks exchange digests of group names, because the names are numbers that each rank
        # assigns itself.
        groups = [_digest(str(group)) for group in own.groups or ()]
        everyone = _gathered(distributed, replace(own.regrouped(groups), metrics={}))
        before = everyone[: distributed.get_rank()]
        return cls(own, Review.joined(everyone), sum(len(part.verdicts) for part in before))

    def settle(
        self, guard: Guard, rewards: Callable[[], Sequence[float | None]], policy: Policy
    ) -> list[float | None]:
        """Settle the rewards of this rank's rows; every rank must call this for the same function.

        Each rank settles all rows, because the lowest reward of a group, which its rejected
        completions get, can be on another rank. ``rewards`` returns the function's rewards for this
        rank's rows, or raises the function's exception, which is raised here; on the other ranks,
        AbstainError or RuntimeError is raised.
        """
        distributed = distributed_ranks()
        if distributed is None:
            given = rewards()
            return _with_means(given, guard.settle(given, self.own, policy=policy), self.own)
        _, everyone = _together(distributed, rewards)
        all_of_them = [reward for part in everyone for reward in part]
        settled = guard.settle(all_of_them, self.whole, policy=policy)
        settled = _with_means(all_of_them, settled, self.whole)
        return settled[self.start : self.start + len(self.own.verdicts)]


def _with_means(
    given: Sequence[float | None], settled: Sequence[float | None], review: Review
) -> list[float | None]:
    """Give accepted completions whose reward was removed only for length the mean of their group,
    and therefore no advantage. Returning None instead would make TRL log that all reward functions
    returned None, as if something had failed."""
    filled = SettledGroups.of(settled, review.groups).filled
    factors = review.length_factors or [1.0] * len(settled)
    return [
        mean if after is None and before is not None and verdict.accepted and factor <= 0 else after
        for before, after, mean, verdict, factor in zip(
            given, settled, filled, review.verdicts, factors, strict=True
        )
    ]


def distributed_ranks() -> Any:
    """Return torch.distributed if this process is one of several ranks, otherwise None."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="backslashreplace")).digest()


def _together(
    distributed: Any, work: Callable[[], T], shared: Callable[[T], Any] = lambda made: made
) -> tuple[T, list[Any]]:
    """Do this rank's work, and return its result along with what every rank ``shared`` of its own
    result, by rank. Every rank must call this function. A rank that fails tells the others, because
    they are waiting for it: they raise AbstainError or RuntimeError."""
    try:
        own = work()
    except Exception as error:
        _gathered(distributed, ((isinstance(error, AbstainError), str(error)), None))
        raise
    answers = _gathered(distributed, (None, shared(own)))
    for rank, (problem, _) in enumerate(answers):
        if problem is not None:
            raise (AbstainError if problem[0] else RuntimeError)(f"rank {rank}: {problem[1]}")
    return own, [theirs for _, theirs in answers]


def _with_all_names(distributed: Any, review: Review) -> Review:
    """Add a figure of 0 for every name that only other ranks log: older releases of TRL average
    over ranks name by name, and a rank with an extra name would wait for the others forever."""
    names = sorted(
        {name for theirs in _gathered(distributed, [*review.metrics]) for name in theirs}
    )
    return replace(review, metrics={name: review.metrics.get(name, 0.0) for name in names})


def _gathered(distributed: Any, value: Any) -> list[Any]:
    """Gather a value from every rank, in rank order."""
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, value)
    return everyone


def _owners(keys: Sequence[Sequence[bytes]]) -> dict[bytes, int]:
    """Choose the rank that judges each group whose rows are spread over several ranks."""
    held: dict[bytes, Counter[int]] = {}
    for rank, row_keys in enumerate(keys):
        for key in row_keys:
            held.setdefault(key, Counter())[rank] += 1
    return {
        key: max(ranks, key=lambda rank: (ranks[rank], -rank))
        for key, ranks in held.items()
        if len(ranks) > 1
    }


def _light(row: Row) -> Row:
    """Drop the images in a row's prompt: verifiers read text, and images take megabytes."""
    prompt = row.completion.prompt
    if isinstance(prompt, str):
        return row
    text = [_text_only(message) for message in prompt]
    return replace(row, completion=replace(row.completion, prompt=text))


def _text_only(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    parts = [
        {k: v for k, v in part.items() if isinstance(v, str)} if hasattr(part, "items") else part
        for part in content
    ]
    return {**message, "content": parts}


class Turn:
    """The position of an async call in the order that an event loop's functions were called in.
    Calls finish in any order, and in a different one on each rank, but the exchange between ranks
    must follow the same order everywhere, or one function's rewards would be mistaken for
    another's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before, self._own = _latest.get(self._loop), self._loop.create_future()
        _latest[self._loop] = self._own

    async def come(self) -> None:
        """Wait until all earlier calls are done, no matter how they ended."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *_: object) -> None:
        self._own.set_result(None)
        if _latest.get(self._loop) is self._own:
            del _latest[self._loop]


_latest: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}


class SharedReviews:
    """The review of the latest batch, so that several reward functions cost one verification. Only
    one is kept: within a batch TRL calls the functions one after the other, or all at once if they
    are async. If a function asks again after the review is done, it has a new batch that merely
    looks the same; that is verified again, because the policy might have changed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._digest = b""
        self._readers: set[int] = set()
        self._future: Future[RankReview] = Future()

    def get(
        self, reviewer: BatchReviewer, batch: Sequence[Row], *, reader: object
    ) -> tuple[RankReview, bool]:
        """Return the review of a batch, and whether this reader was the first to ask for it."""
        future, first = self._join(batch, reader)
        if first:
            with _failing(future):
                future.set_result(RankReview.of(reviewer.review(batch)))
        return future.result(), first

    async def aget(
        self, reviewer: BatchReviewer, batch: Sequence[Row], *, reader: object
    ) -> tuple[RankReview, bool]:
        """Like `get`, but without blocking the running event loop.

        A separate thread does the work and sets the result. If a task of this loop did it,
        cancelling the first caller would take the review away from the others, and a sync function
        waiting for the review on the loop's thread would wait forever.
        """
        future, first = self._join(batch, reader)
        if first:

            def work() -> None:
                with _failing(future):
                    future.set_result(RankReview.of(reviewer.review(batch)))

            run = contextvars.copy_context().run
            threading.Thread(target=run, args=(work,), daemon=True).start()
        return await asyncio.wrap_future(future), first

    def _join(self, batch: Sequence[Row], reader: object) -> tuple[Future[RankReview], bool]:
        # All fields count, including the round; repr distinguishes "1" from 1 and quotes strings.
        digest = _digest(repr(tuple(batch)))
        with self._lock:
            again = id(reader) in self._readers and self._future.done()
            first = digest != self._digest or again
            if first:
                self._digest, self._readers, self._future = digest, set(), Future()
                # A running future cannot be cancelled: a caller that gives up only stops waiting.
                self._future.set_running_or_notify_cancel()
            self._readers.add(id(reader))
            return self._future, first


_all_reviews: WeakKeyDictionary[Guard, SharedReviews] = WeakKeyDictionary()
_all_reviews_lock = Lock()


def shared_reviews(guard: Guard) -> SharedReviews:
    """Return a guard's shared reviews, the same object on every call."""
    with _all_reviews_lock:
        return _all_reviews.setdefault(guard, SharedReviews())


@contextlib.contextmanager
def _failing(future: Future[RankReview]) -> Iterator[None]:
    """Pass any failure on to all callers that wait for the future."""
    try:
        yield
    except BaseException as error:
        future.set_exception(error)
