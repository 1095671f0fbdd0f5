"""Processes on this machine as the workers of a `Pool`."""

import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.verdict import Cause
from grpo_guard.guard.grader_pool import WorkerProcess, answer_of, packed, packed_arguments
from grpo_guard.guard.workers.pool import Pool, WorkersError
from grpo_guard.guard.workers.ticket import Lost

BASE_SECONDS: Final = 60.0
SECONDS_A_CHARACTER: Final = 1e-4
"""Time limit per character, in seconds: five rules take 60 us at worst, on endless equations."""


class Processes:
    """Starts processes that read texts. Like those of `grpo_guard.guard.grader_pool`, they are new
    interpreters, neither forks nor children of `multiprocessing`, and end with this process."""

    label = "workers"
    start_seconds = 60.0
    absent = "texts are read in this process"
    error = WorkersError

    def start(self) -> WorkerProcess:
        """Start a process."""
        return WorkerProcess()

    def ask(self, worker: WorkerProcess, method: str, *args: Any) -> Future[Any]:
        """Call a process from a separate thread, because waiting for the answer blocks."""
        answer: Future[Any] = Future()
        ask = _ready if method == "start" else self._read

        def wait() -> None:
            try:
                answer.set_result(ask(worker, *args))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=wait, daemon=True, name="grpo-guard-worker").start()
        return answer

    def _read(self, worker: WorkerProcess, part: Sequence[Completion], source: bytes) -> list[Any]:
        """Return readings, or `Lost` for completions that cannot be sent or if the call itself
        fails. By then, verifier exceptions have become abstentions, so no text can be to blame."""
        try:
            arguments = packed_arguments((part,), {})
        except TypeError as error:
            return _untried(part, str(error))
        reply = worker.call(source, arguments, self.seconds(part))
        if reply[0] == "unreadable":
            return _untried(part, reply[2])
        try:
            found: list[Any] = answer_of(reply)
        except MemoryError:
            raise
        except Exception as error:
            return _untried(part, f"{type(error).__name__}: {error!s:.200}")
        return found

    def end(self, worker: WorkerProcess) -> None:
        """Kill a process."""
        worker.kill()

    def seconds(self, objects: Sequence[Completion]) -> float:
        """Time limit for a part, in seconds. A text that alone exceeds it three times abstains."""
        return BASE_SECONDS + SECONDS_A_CHARACTER * sum(len(one.text) for one in objects)

    def lacks(self) -> str:
        """Describe what to check if no process starts."""
        return "each is a Python process of this machine"

    def is_memory(self, error: BaseException) -> bool:
        """Whether a process ran out of memory and reported it."""
        return isinstance(error, MemoryError)


def _ready(worker: WorkerProcess) -> bool:
    return bool(answer_of(worker.call(packed(bool), packed_arguments((True,), {}), 60.0)))


def _untried(part: Sequence[Completion], why: str) -> list[Lost]:
    return [Lost(Cause.FAULT, why, untried=True)] * len(part)


class SharedPools:
    """One pool per number of processes, shared by all guards in this process.

    If each guard had its own pool, each would start its own processes. The last guard to leave a
    pool ends the pool's processes.
    """

    def __init__(self) -> None:
        self.forget()

    def join(self, workers: int) -> Pool:
        """Return the pool with this many processes; call `leave` once per `join`."""
        with self._lock:
            self._users[workers] += 1
            if workers not in self._pools:
                self._pools[workers] = Pool(Processes(), workers)
            return self._pools[workers]

    def leave(self, workers: int, owner: int) -> None:
        """Leave the pool, and end it if nobody else is using it. Does nothing in a fork of the
        process that joined (``owner``)."""
        pool = None
        if os.getpid() == owner:
            with self._lock:
                self._users[workers] -= 1
                if not self._users[workers]:
                    pool = self._pools.pop(workers, None)
        if pool is not None:
            pool.close()

    def forget(self) -> None:
        """Start without pools in a forked child, where the parent's processes do not answer."""
        # The garbage collector can call `leave` at any point in `join`, in the same thread.
        self._lock = Lock()
        self._users = Counter[int]()
        self._pools: dict[int, Pool] = {}


shared: Final = SharedPools()
os.register_at_fork(after_in_child=shared.forget)
