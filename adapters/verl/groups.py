"""verl: collect each group, because verl calls a reward manager once per trajectory.

One collector, a named Ray actor, holds the guard for all reward workers: models are loaded once,
the ledger has one writer, and abstentions are counted in one place. Each trajectory waits until its
siblings (same prompt and step) have arrived or a timeout ends the wait. Meanwhile, rules that need
only its text are already applied (`Guard.read_early`). Groups that are complete when the verifiers
become free are verified as one batch.

In verl a completion cannot leave its group. A left-out completion gets the mean reward of the
remaining ones: the group's mean is then the same as without it, and its own advantage is 0.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from grpo_guard.adapters.received import Row, parts_of
from grpo_guard.adapters.received import review as review_rows
from grpo_guard.core.rollouts import badness
from grpo_guard.core.verdict import Cause, Outcome
from grpo_guard.guard import Guard
from grpo_guard.guard.graders import LARGEST_REWARD
from grpo_guard.guard.review import Review
from grpo_guard.guard.settlement import mean_of_kept

Key: TypeAlias = tuple[str, int | None]


# Maximum numbers of: groups whose mean is kept for late trajectories; rewards kept as a reference
# for completions without comparable siblings; trajectories verified in one go.
_REMEMBERED, _SCORES, _BATCH = 4096, 1024, 1024
# Maximum number of tokens in waiting trajectories, including prompts: about 2 GB as Python objects.
_MOST_TOKENS = 30_000_000


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A graded rollout that waits up to ``timeout`` seconds for its siblings, which share its
    prompt's uid and step and which ``siblings`` counts with it. ``rows`` are all its completions
    that are trained on, at least one; ``score`` is None if it is missing or not finite."""

    uid: str
    step: int | None
    siblings: int
    rows: tuple[Row, ...]
    score: float | None
    timeout: float

    @property
    def tokens(self) -> int:
        """Number of tokens, including prompts, that the trajectory holds while it waits."""
        completions = [row.completion for row in self.rows]
        return sum(len(c.prompt_ids or ()) + len(c.completion_ids or ()) for c in completions)


Log: TypeAlias = Callable[[Sequence[Trajectory], Review, Sequence[float], float | None], None]
"""Receives a batch's trajectories, their review, the seconds that each trajectory waited between
the completion of its group and its verdict, and the share that had been read early, or None if
reading early is off."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The result for a trajectory: its finite score, the outcome and cause of its verdict, and
    the number of trajectories judged ``together``. A left-out trajectory has the mean score of its
    remaining siblings, or at most 0 if none remains."""

    score: float
    left_out: bool
    outcome: Outcome
    cause: Cause
    together: int


def finite(score: float | None) -> float | None:
    """Return the reward if it keeps a group's mean finite, even in float32, otherwise None."""
    return score if score is not None and abs(score) <= LARGEST_REWARD else None


@dataclass(slots=True)
class _Group:
    members: list[tuple[Trajectory, asyncio.Future[Settled]]] = field(default_factory=list)
    absent: int = 0
    timer: asyncio.TimerHandle | None = None
    kept: list[float] = field(default_factory=list)  # scores not left out, even late ones
    closed: float = 0.0  # on the monotonic clock

    @property
    def tokens(self) -> int:
        return sum(trajectory.tokens for trajectory, _ in self.members)


class SiblingCollector:
    """Collects siblings, has them verified, and settles their rewards. Runs in one event loop.

    Args:
        build: Builds the guard; called once, at the first trajectory.
        most_waiting: Maximum number of trajectories waiting for siblings; beyond it, the oldest
            group is judged as it is. A Ray worker has room for 1,000 calls: if all of them were
            waiting, the siblings they wait for could not get in.
        most_tokens: Maximum number of tokens in waiting trajectories, including prompts; beyond it,
            the group with the most tokens is judged, so that one node's long completions do not cut
            short the wait for others.
        log: Called after every batch.
        read_early: Whether to read a text before all of its siblings have arrived.
    """

    def __init__(
        self,
        build: Callable[[], Guard],
        *,
        most_waiting: int = 500,
        most_tokens: int = _MOST_TOKENS,
        log: Log | None = None,
        read_early: bool = True,
    ) -> None:
        self._build, self._log, self._read_early = build, log, read_early
        self._most_waiting, self._most_tokens = most_waiting, most_tokens
        self._guard: Guard
        self._open: OrderedDict[Key, _Group] = OrderedDict()
        self._past: OrderedDict[Key, _Group] = OrderedDict()
        self._complete: deque[tuple[Key, _Group]] = deque()
        self._waiting = self._tokens = 0
        self._scores: deque[float] = deque(maxlen=_SCORES)
        self._work: asyncio.Task[None] | None = None
        self._building = asyncio.Lock()

    async def settle(self, trajectory: Trajectory) -> Settled:
        """Wait for a trajectory's siblings, then for its verdict. Raises ConfigError if the guard
        cannot be built, and AbstainError if the guard abstained too often or the policy says to
        raise."""
        async with self._building:
            if not hasattr(self, "_guard"):
                self._guard = await asyncio.to_thread(self._build)
        key = (trajectory.uid, trajectory.step)
        future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        late = key in self._past
        group = _Group() if late else self._open_group(key, trajectory.timeout)
        group.members.append((trajectory, future))
        if late:
            self._start(key, group)
        else:
            self._waiting, self._tokens = self._waiting + 1, self._tokens + trajectory.tokens
            self._check(key, trajectory.siblings)
            if self._read_early and key in self._open:
                self._guard.read_early(*parts_of(trajectory.rows))
        return await future

    async def absent(self, uid: str, step: int | None, siblings: int, timeout: float) -> None:
        """Record that a sibling will not arrive, because its rollout or its grading failed."""
        key = (uid, step)
        if key not in self._past:
            self._open_group(key, timeout).absent += 1
            self._check(key, siblings)

    def _open_group(self, key: Key, timeout: float) -> _Group:
        if key not in self._open:
            self._open[key] = group = _Group()
            loop = asyncio.get_running_loop()
            group.timer = loop.call_later(timeout, self._close, key)
        return self._open[key]

    def _check(self, key: Key, siblings: int) -> None:
        group = self._open[key]
        if len(group.members) + group.absent >= siblings:
            self._close(key)
        while self._waiting > self._most_waiting:
            self._close(next(iter(self._open)))
        while self._tokens > self._most_tokens:
            self._close(max(self._open, key=lambda k: self._open[k].tokens))

    def _close(self, key: Key) -> None:
        group = self._open.pop(key)
        self._waiting -= len(group.members)
        self._tokens -= group.tokens
        if group.timer:
            group.timer.cancel()
        self._past[key] = group
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)
        if group.members:
            self._start(key, group)

    def _start(self, key: Key, group: _Group) -> None:
        group.closed = time.monotonic()
        self._complete.append((key, group))
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._verify_all())

    async def _verify_all(self) -> None:
        """Review complete groups, one batch at a time, because verifiers need not be
        thread-safe."""
        while self._complete:
            groups = [self._complete.popleft()]
            size = len(groups[0][1].members)
            while self._complete and size + len(self._complete[0][1].members) <= _BATCH:
                groups.append(self._complete.popleft())
                size += len(groups[-1][1].members)
            trajectories = [t for _, group in groups for t, _ in group.members]
            rows = [row for t in trajectories for row in t.rows]
            try:
                review = await asyncio.to_thread(review_rows, self._guard, rows)
                combined = _by_trajectory(review, trajectories)
                if self._log is not None:
                    now = time.monotonic()
                    waited = [now - group.closed for _, group in groups for _ in group.members]
                    early = review.metrics.get("guard/read_early_rate")
                    self._log(trajectories, combined, waited, early)
                start = 0
                for key, group in groups:
                    end = start + len(group.members)
                    self._settle_group(key, group, combined.at(range(start, end)))
                    start = end
            except Exception as error:  # every waiting trajectory must receive the failure
                for _, group in groups:
                    _fail(group, error)

    def _settle_group(self, key: Key, group: _Group, review: Review) -> None:
        guard, rows = self._guard, [t for t, _ in group.members]
        self._scores.extend(t.score for t in rows if t.score is not None)
        to_zero = guard.policy.on_abstain == "zero"
        given = [
            # A veto also replaces a missing reward.
            0.0 if t.score is None and (v.rejected or (v.abstained and to_zero)) else t.score
            for t, v in zip(rows, review.verdicts, strict=True)
        ]
        try:
            scores = guard.settle(given, review)
        except Exception as error:  # the policy may raise
            _fail(group, error)
            return
        earlier = self._past.get(key, group)
        earlier.kept += [x for x in scores if x is not None]
        # If no sibling remains, late trajectories must not get more than their siblings earned.
        nothing = min(0.0, *self._scores) if rows[0].siblings > 1 and self._scores else 0.0
        mean = mean_of_kept(earlier.kept, nothing)
        for (_, future), score, verdict in zip(group.members, scores, review.verdicts, strict=True):
            if not future.done():
                out = score is None and not guard.policy.watches
                value = mean if score is None else score
                size = len(group.members)
                future.set_result(Settled(value, out, verdict.outcome, verdict.cause, size))
        earlier.members = []  # keep only the mean


def _by_trajectory(review: Review, trajectories: Sequence[Trajectory]) -> Review:
    """Reduce a review to one verdict per trajectory, the worst of its rows, because all of them are
    trained on."""
    ends = list(accumulate(len(trajectory.rows) for trajectory in trajectories))
    own = [review.verdicts[start:end] for start, end in pairwise([0, *ends])]
    verdicts = [max(of_one, key=badness) for of_one in own]
    last = [end - 1 for end in ends]
    # Groups are given by verl's uid, because the last turns of siblings have different prompts.
    return replace(review.at(last).regrouped(None), verdicts=verdicts)


def _fail(group: _Group, error: Exception) -> None:
    for _, future in group.members:
        if not future.done():
            future.set_exception(error)
    group.members = []
