"""Give no reward, rather than a reward of 0, if a grader raises or takes too long.

In most trainers, a failed grader ends the run or yields a reward of 0, which lowers the group's
mean and teaches the policy that its answer was wrong. A guard with `GraderFailures` calls the
reward function itself, and a failure yields None, so the completion leaves its group like any other
completion without a reward.
"""

import asyncio
import contextvars
import logging
import math
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.arguments import require_count, worded_class
from grpo_guard.core.forks import Lock
from grpo_guard.guard.policy import AbstainError

if TYPE_CHECKING:
    from grpo_guard.guard.grader_pool import GraderPool

logger = logging.getLogger("grpo_guard")
# Maximum number of hung calls: a coroutine can ignore its cancellation and hang in its event loop.
MAX_HUNG_GRADERS: Final = 32
# Maximum magnitude of a reward. A grader that subtracts answers can return 1e308, which is infinite
# in trainers' float32 and turns the whole group into NaN. The square of this limit, as used for
# standard deviations, is still finite.
LARGEST_REWARD: Final = 1e18
_NOT_HERE: Final = "only works in main thread"


class Failed(Enum):
    """The value used in place of a failed grader's answer."""

    FAILED = "failed"


FAILED: Final = Failed.FAILED


@dataclass(frozen=True)
class Grader:
    """A function to call, in a worker process if there is a time limit, and a function that reads
    its answer in the caller's process. If either raises, the grading has failed."""

    call: Callable[..., Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class _Raised:
    error: Exception


@worded_class
class GraderFailures:
    """Calls a reward function and treats exceptions and time-outs as missing answers.

    With TRL a call covers a batch; with most other trainers, one completion. If a call fails, none
    of its completions gets a reward. Failures are logged with their tracebacks. Programming errors
    look the same, so too many failures stop the run.

    Where functions run:

    ===========  ====================================  ===========================================
    function     no ``timeout``                        with a ``timeout``
    ===========  ====================================  ===========================================
    ``def``      in the trainer's thread, as without   on the main thread of a worker process,
                 a guard                               killed at the limit and replaced
    async def    in the trainer's event loop           in the trainer's event loop, at most
                                                       ``concurrency`` calls at a time
    ===========  ====================================  ===========================================

    Graders that set a signal alarm (math-verify, `trl.rewards.accuracy_reward`) need a main thread.
    The time limit starts with the call itself; waiting for a worker or for a turn does not count.
    Raises ValueError if an argument is out of range.

    Args:
        timeout: Time limit for a call, in seconds; None for no limit.
        max_rate: Maximum share of failed calls over the last ``window`` calls.
        window: Number of calls over which ``max_rate`` applies, once that many have been made.
        each: Whether to grade each completion of a batch in a separate call, so that a failure
            costs only one completion. Not for functions that compare completions within a batch.
            Only TRL's adapters receive whole batches.
        concurrency: Maximum number of concurrent calls of async functions in one event loop, if
            ``timeout`` is set.
    """

    def __init__(
        self,
        *,
        timeout: float | None = None,
        max_rate: float = 0.25,
        window: int = 20,
        each: bool = False,
        concurrency: int = 64,
    ) -> None:
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"GraderFailures.timeout: expected seconds > 0, got {timeout!r}")
        if not 0 <= max_rate <= 1:
            raise ValueError(f"GraderFailures.max_rate: expected 0 to 1, got {max_rate!r}")
        require_count("GraderFailures.window", window)
        require_count("GraderFailures.concurrency", concurrency)
        self.timeout, self.max_rate, self.window = timeout, max_rate, window
        self.each, self.concurrency = each, concurrency
        self._begin()

    def _begin(self) -> None:
        """Start counting afresh; a copy does the same, with its own lock and workers."""
        self._failed: deque[bool] = deque(maxlen=self.window)
        self._lock = Lock()
        self._workers: GraderPool | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._turns = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()
        self._hung = weakref.WeakSet[asyncio.Future[Any]]()

    def check(self, name: str, call: Callable[..., Any], is_async: bool = False) -> None:
        """Check before grading that a function can be called with this time limit. Raises TypeError
        if the function needs a worker process but cannot be sent to one; the message states the
        remedy."""
        if self.timeout is None or is_async:
            return
        from grpo_guard.guard.grader_pool import packed

        try:
            packed(call)
        except TypeError as error:
            raise TypeError(
                f"{name}: timeout={self.timeout} calls a reward function in a worker process, "
                "where it can be stopped and can set signal alarms, and this function cannot be "
                f"sent to one: {error}. Create what cannot be sent inside the function, at its "
                "first call; or declare the function `async def`, which is limited in its event "
                "loop; or leave out timeout, and the function is called where the trainer calls it"
            ) from error

    def ask(self, name: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function (or `Grader`) and return its answer, or `FAILED`. Raises AbstainError if
        too many calls have failed, with the last exception as its cause."""
        return self._answer(name, self._outcome(call, args, kwargs))

    def ask_each(
        self, name: str, call: Callable[..., Any], rows: Sequence[Mapping[str, Any]]
    ) -> list[Any]:
        """Call `ask` once per row of keyword arguments, in parallel if there are worker processes,
        and return the answers in order.

        The batch counts as one call, which fails if more than ``max_rate`` of its rows fail,
        because a prompt that hangs a grader hangs it for every completion in its group. Raises
        AbstainError if too many batches failed.
        """
        if self.timeout is None or len(rows) < 2:
            return self._counted(name, [self._outcome(call, (), row) for row in rows])
        most = min(len(rows), self._pool().size)
        with ThreadPoolExecutor(most, thread_name_prefix="grpo-guard-graders") as threads:
            asked = [
                threads.submit(
                    contextvars.copy_context().run, partial(self._outcome, call, (), row)
                )
                for row in rows
            ]
            try:
                outcomes = [answer.result() for answer in asked]
            except BaseException:  # an interrupt
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return self._counted(name, outcomes)

    def attempt(self, name: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Like `ask`, for a call that peers can make fail. Answers are counted. Failures are raised
        but not counted; otherwise a peer could fill the window with failures and stop the run."""
        answer = self._called(call, args, kwargs)
        self._count(name, None)
        return answer

    async def aask(
        self, name: str, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Like `ask`, for an async function. A time limit can end the call only at an ``await``."""
        return self._answer(name, await self._aoutcome(call, args, kwargs, self.timeout))

    async def aask_each(
        self, name: str, call: Callable[..., Awaitable[Any]], rows: Sequence[Mapping[str, Any]]
    ) -> list[Any]:
        """Like `ask_each`, for an async function."""
        asked = [asyncio.ensure_future(self._aoutcome(call, (), row, self.timeout)) for row in rows]
        try:
            outcomes = list(await asyncio.gather(*asked))
        finally:
            for task in asked:
                task.cancel()
        return self._counted(name, outcomes)

    async def awatch(
        self, name: str, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Like `aask` but without a time limit, for functions that grade within `in_worker`."""
        return self._answer(name, await self._aoutcome(call, args, kwargs, None))

    async def in_worker(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a synchronous function in a worker process and return its answer. Its exceptions, and
        a TimeoutError at the time limit, are raised and not counted."""
        size = self._pool().size
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(size, thread_name_prefix="grpo-guard-graders")
        run = partial(contextvars.copy_context().run, partial(self._called, call, args, kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _called(self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        grader = call if isinstance(call, Grader) else Grader(call, lambda answer: answer)
        if self.timeout is not None:
            answer = self._pool().run(grader.call, args, kwargs, self.timeout)
        else:
            with _plain_exceptions():
                answer = grader.call(*args, **kwargs)
        return grader.read(answer)

    def _outcome(self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return self._called(call, args, kwargs)
        except Exception as error:
            return _Raised(error)

    async def _aoutcome(
        self, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], limit: float | None
    ) -> Any:
        try:
            with _plain_exceptions():
                if limit is None:
                    return await call(*args, **kwargs)
                async with self._turn():
                    return await self._limited(call(*args, **kwargs), limit)
        except Exception as error:
            return _Raised(error)

    def _answer(self, name: str, outcome: Any) -> Any:
        """The answer of one call, or `FAILED`; counted either way."""
        error = outcome.error if isinstance(outcome, _Raised) else None
        if error is not None:
            self._log(f"{name} failed", error)
        self._count(name, error)
        return outcome if error is None else FAILED

    def _counted(self, name: str, outcomes: Sequence[Any]) -> list[Any]:
        errors = [outcome.error for outcome in outcomes if isinstance(outcome, _Raised)]
        if errors:
            self._log(f"{name} failed on {len(errors)} of {len(outcomes)} completions", errors[-1])
        too_many = len(errors) > self.max_rate * len(outcomes)
        self._count(name, errors[-1] if too_many else None)
        return [FAILED if isinstance(outcome, _Raised) else outcome for outcome in outcomes]

    def _pool(self) -> "GraderPool":
        from grpo_guard.guard.grader_pool import GraderPool

        with self._lock:
            if self._workers is None:
                self._workers = GraderPool()
            return self._workers

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        with self._lock:
            turns = self._turns.setdefault(loop, asyncio.Semaphore(self.concurrency))
        async with turns:
            yield

    async def _limited(self, call: Awaitable[Any], timeout: float) -> Any:
        task = asyncio.ensure_future(call)
        try:
            hung = sum(not left.done() for left in list(self._hung))
            if hung >= MAX_HUNG_GRADERS:
                raise TimeoutError(f"{hung} earlier calls ignore their cancellation")
            # Not asyncio.timeout, which waits for a call that ignores its cancellation, and drops
            # an answer that arrived while something else kept the loop busy.
            done, _ = await asyncio.wait([task], timeout=timeout)
            if not done:
                raise TimeoutError(f"no answer within {timeout} s")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                self._hung.add(task)
                task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def _log(self, what: str, error: Exception) -> None:
        logger.warning("%s; completions that failed have no reward", what, exc_info=error)
        if self.timeout is None and _NOT_HERE in f"{error} {error.__cause__}":
            logger.warning(
                "%s: it sets a signal alarm and was not called on the main thread; with a timeout, "
                "reward functions are called on the main thread of a worker process",
                what,
            )

    def _count(self, name: str, error: Exception | None) -> None:
        with self._lock:
            self._failed.append(error is not None)
            failed, asked = sum(self._failed), len(self._failed)
        if error is not None and asked == self.window and failed > self.max_rate * asked:
            raise AbstainError(
                f"{name}: {failed} of the last {asked} calls failed (max_rate={self.max_rate}); "
                f"the last with {type(error).__name__}: {error!s:.200}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        begun = ("_failed", "_lock", "_workers", "_threads", "_turns", "_hung")
        return {name: value for name, value in vars(self).items() if name not in begun}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


@contextmanager
def _plain_exceptions() -> Iterator[None]:
    """Turn failures that are not `Exception`s, like math-verify's TimeoutException, into errors."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error!s:.200}") from error


def finite_or_none(rewards: Sequence[float | None]) -> list[float | None]:
    """Replace rewards that are not finite, or exceed `LARGEST_REWARD` in magnitude, with None."""
    # A tensor of booleans has no absolute value.
    return [r if r is not None and abs(float(r)) <= LARGEST_REWARD else None for r in rewards]
