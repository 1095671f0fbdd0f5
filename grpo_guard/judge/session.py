"""`Session`: a judge's state on one event loop, and how it settles cases."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Usage
from grpo_guard.judge.asking import Asker
from grpo_guard.judge.backends.base import Backend, Request
from grpo_guard.judge.cache import RulingCache
from grpo_guard.judge.case import Brief, Case
from grpo_guard.judge.errors import BackendError, JudgeSetupError
from grpo_guard.judge.limits import Limits
from grpo_guard.judge.modes import Ruling

logger = logging.getLogger("grpo_guard")
# Number of cases in progress per request in flight, because some cases are between two requests.
# All other cases hold neither a task nor a prompt, however many there are.
AT_WORK = 8
_NEUTRAL = Completion("What is 1 + 1?", "1 + 1 = 2", reference="2")
# How long a verdict on the neutral question vouches for the judge, in seconds. Without this, an
# author whose texts get no verdict would have the neutral question repeated for each of them.
VOUCHED = 60.0


@dataclass(frozen=True, slots=True)
class _Batch:
    neutral: Case
    deadline: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Session:
    """A judge's counts, the state of its limits, and its cache connection, on one event loop."""

    def __init__(self, backend: Backend, limits: Limits, cache: str | None) -> None:
        self._backend = backend
        self._limits = limits
        self._asker = Asker(backend, limits)
        self._cache = None if cache is None else RulingCache(cache)
        self._cache_lock, self._check_lock = asyncio.Lock(), asyncio.Lock()
        self._checked = False
        self._vouched_at: float | None = None

    async def settle(self, cases: Mapping[str, Case], brief: Brief, secret: bytes) -> None:
        """Find a ruling or a failure for each case. The cases are keyed by cache key and share
        ``brief`` and ``secret``."""
        known: dict[str, Ruling] = {}
        if self._cache is not None:
            async with self._cache_lock:
                known = await asyncio.to_thread(self._cache.get, list(cases))
        for key, ruling in known.items():
            cases[key].ruling = ruling
            cases[key].usage = Usage(cache_hits=1)
        pending = [case for key, case in cases.items() if key not in known]
        if not pending:
            return
        neutral = Case(_NEUTRAL, brief, secret)
        try:
            deadline = await self._ready(neutral.request())
            await self._close_all(pending, _Batch(neutral, deadline))
        except JudgeSetupError as error:
            for case in pending:
                case.failure = error
        finally:  # also if the caller gave up: keep the rulings that were paid for
            new = {key: c.ruling for key, c in cases.items() if key not in known and c.ruling}
            if self._cache is not None:
                async with self._cache_lock:
                    await asyncio.to_thread(self._cache.put, new)
        # Logged once, rather than for each completion affected.
        broken = (c.failure for c in pending if isinstance(c.failure, JudgeSetupError))
        if found := next(broken, None):
            logger.error("judge: %s", found)

    async def _ready(self, neutral: Request) -> float:
        """Check that the model is available, unless an earlier check succeeded, so that not every
        completion discovers separately that the key is wrong. Return the batch's deadline: for a
        local model, the clock starts after loading, which can take any amount of time."""
        self._asker.begin(neutral)
        seconds = self._limits.deadline
        deadline = time.monotonic() + seconds
        own = self._backend.batch_size > 1
        with contextlib.suppress(TimeoutError):  # no time is left to ask anything
            async with asyncio.timeout(None if own else seconds), self._check_lock:
                if not self._checked:
                    await self._backend.check()
                    self._checked = True
        return time.monotonic() + seconds if own else deadline

    async def _close_all(self, cases: Sequence[Case], batch: _Batch) -> None:
        if self._backend.batch_size > 1:
            await self._close(cases, batch.deadline)
            await self._recheck_rejections(cases, batch)
            return
        # Each worker settles one case at a time: no case waits for another's second question.
        left = iter(cases)
        flying = self._limits.concurrency or self._backend.concurrency

        async def work() -> None:
            for case in left:
                await self._close([case], batch.deadline)
                # Done now rather than at the end: one text that keeps the model busy until the
                # deadline must not hide why others got no verdict.
                await self._recheck_rejections([case], batch)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(len(cases), AT_WORK * flying)):
                workers.create_task(work())

    async def _close(self, cases: Sequence[Case], deadline: float) -> None:
        """Ask until every case is closed, which happens at the latest when its attempts run out."""
        pending, limits = cases, self._limits
        while pending:
            made = max(case.usage.requests for case in pending)
            answers = await self._asker.ask(
                [case.request() for case in pending],
                deadline=deadline,
                attempts=max(1, limits.attempts - made),
            )
            closed = [c.take(a, limits) for c, a in zip(pending, answers, strict=True)]
            pending = [case for case, done in zip(pending, closed, strict=True) if not done]

    async def _recheck_rejections(self, cases: Sequence[Case], batch: _Batch) -> None:
        """Turn rejections for a missing verdict into abstentions if the neutral question gets no
        verdict either: the fault then lies with how the judge answers, not with the completion.

        A verdict on another completion would not prove that the judge works: its text could contain
        an answer for a weak judge to repeat, and so get all other completions rejected.
        """
        for case in cases:
            ruling = case.ruling
            if ruling is None or ruling.cause not in (Cause.MALFORMED, Cause.REFUSED):
                continue
            failure = await self._neutral_problem(batch)
            if failure is not None:
                case.ruling, case.failure = None, failure

    async def _neutral_problem(self, batch: _Batch) -> BackendError | None:
        """Return why the neutral question gets no verdict, or None if it gets one."""
        neutral = batch.neutral
        async with batch.lock:
            if self._vouched_at is not None and time.monotonic() < self._vouched_at + VOUCHED:
                return None
            if neutral.open:  # once per batch
                await self._close([neutral], batch.deadline)
                if neutral.ruling is not None and neutral.ruling.cause is Cause.JUDGED:
                    self._vouched_at = time.monotonic()
        ruling = neutral.ruling
        if ruling is None or ruling.cause is Cause.JUDGED:
            return neutral.failure
        reason = ruling.finding.message if ruling.finding is not None else ruling.cause.value
        mode = neutral.brief.mode.name
        return JudgeSetupError(
            f"the model gives no verdict in mode {mode!r}, not even on '{_NEUTRAL.text}' ({reason})"
            "; choose one that can answer in this form, another mode, or more max_tokens"
        )
