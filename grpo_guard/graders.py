"""A grader that raises or takes too long says nothing of a completion; it does not say 0.

Trainers make a failed grader the end of the run, or a reward of 0 that lowers the group's mean and
teaches the policy that its answer was wrong. A guard with `GraderFailures` calls the reward
function itself, and what fails earns None: it leaves its group, like any completion without a
reward.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, Final

from grpo_guard.policy import AbstainError

logger = logging.getLogger("grpo_guard")
# A thread cannot be killed: a grader that hangs leaves one behind for each call.
MAX_HUNG_GRADERS: Final = 32
# A grader that subtracts answers may say 1e308, which is infinite in the trainers' float32 and
# makes NaN of its group; the square of this one, for deviations, is not.
LARGEST_REWARD: Final = 1e18


class Failed(Enum):
    """Stands for what a grader would have returned."""

    FAILED = "failed"


FAILED: Final = Failed.FAILED


class GraderFailures:
    """Calls a reward function and takes an exception or a time-out for no answer.

    A call is a batch with TRL and a completion with most others; where a call fails, all that it
    was about has no reward. A failure is logged with its traceback. Programming errors look the
    same, so that too many failures stop the run: nobody trains on nothing without knowing.

    Args:
        timeout: Seconds a call may take; None = unlimited. A function that is not async then runs
            in a thread, where graders that set a signal alarm (math-verify) do not work.
        max_rate: Highest share of failed calls over the last ``window`` calls.
        window: Calls over which it is taken; it is first taken when full.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, *, timeout: float | None = None, max_rate: float = 0.25, window: int = 20
    ) -> None:
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"GraderFailures.timeout: expected seconds > 0, got {timeout!r}")
        if not 0 <= max_rate <= 1:
            raise ValueError(f"GraderFailures.max_rate: expected a share, got {max_rate!r}")
        if window < 1:
            raise ValueError(f"GraderFailures.window: expected an integer >= 1, got {window!r}")
        self.timeout, self.max_rate, self.window = timeout, max_rate, window
        self._failed: deque[bool] = deque(maxlen=window)
        self._lock = threading.Lock()
        self._hung = 0

    def ask(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function returns, or `FAILED`.

        Raises:
            AbstainError: too many calls failed; the last exception is its cause.
        """
        try:
            answer = (
                call(*args, **kwargs) if self.timeout is None else self._timed(call, args, kwargs)
            )
        except Exception as error:
            return self._failure(name, error)
        self._count(name, None)
        return answer

    async def aask(
        self, name: str, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """The same of an async function."""
        try:
            async with asyncio.timeout(self.timeout):
                answer = await call(*args, **kwargs)
        except Exception as error:
            return self._failure(name, error)
        self._count(name, None)
        return answer

    def _timed(self, call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with self._lock:
            if self._hung >= MAX_HUNG_GRADERS:
                raise TimeoutError(f"{self._hung} earlier calls still hang")
            self._hung += 1
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(call(*args, **kwargs))
            except Exception as error:
                answer.set_exception(error)
            except BaseException as error:  # exit() in a completion that a grader runs ends no run
                answer.set_exception(RuntimeError(f"{type(error).__name__}: {error!s:.200}"))
            finally:
                with self._lock:
                    self._hung -= 1

        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(work,), daemon=True).start()
        try:
            return answer.result(self.timeout)
        except TimeoutError:
            if answer.done():  # the function's own
                raise
            raise TimeoutError(f"no answer within {self.timeout} s") from None

    def _failure(self, name: str, error: Exception) -> Failed:
        logger.warning("%s failed; what it was to grade has no reward", name, exc_info=error)
        self._count(name, error)
        return FAILED

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
        # A worker starts its own count, with its own lock.
        return {"timeout": self.timeout, "max_rate": self.max_rate, "window": self.window}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def finite_or_none(rewards: Sequence[float | None]) -> list[float | None]:
    """A reward that is no finite number is none; nor is one beyond `LARGEST_REWARD`."""
    return [r if r is not None and abs(r) <= LARGEST_REWARD else None for r in rewards]
