"""Worker processes for graders with a time limit, killed and replaced when a call exceeds it.

A thread cannot be stopped and cannot set a signal alarm. Workers are fresh interpreters, neither
forks (which inherit CUDA and other threads' locks) nor children of `multiprocessing` (which run the
training script again). Functions that cannot be imported are sent by value, using cloudpickle.
"""

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import pickle
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import cloudpickle

from grpo_guard.core.forks import Lock
from grpo_guard.guard.grader_worker import Recent

# Seconds allowed for a worker to start, import what a grader needs and unpack its arguments. Not
# part of a call's limit; generous, because loading torch from a cold disk is slow.
START_LIMIT: Final = 300.0
# Maximum size of a packed grader, in bytes. A grader is packed for every call, and one holding a
# model would be copied to every worker.
LARGEST_GRADER: Final = 64 * 2**20
LARGEST_ANSWER: Final = 256 * 2**20
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from grpo_guard.guard.grader_worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class GraderError(RuntimeError):
    """A worker failed outside the call itself, or the call's exception could not be sent."""


def packed(grader: Callable[..., Any]) -> bytes:
    """Pickle a grader for a worker; raise TypeError if it cannot be pickled or is too large."""
    written = _Bounded()
    try:
        _Pickler(written).dump(grader)
    except _TooLargeError:
        raise TypeError(
            f"it holds more than {LARGEST_GRADER >> 20} MiB, which each worker would get a copy of"
        ) from None
    except Exception as error:
        raise TypeError(f"{type(error).__name__}: {error!s:.300}") from error
    return written.getvalue()


def cores() -> int:
    """The number of processes per pool: this rank's share of the cores it may run on."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 1
    usable = int(min(usable, max(1.0, _quota())))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by torchrun and accelerate
    return max(1, usable // max(1, int(ranks) if ranks.isdecimal() else 1))


def _quota() -> float:
    """The number of cores that a container may use. CPU affinity does not reflect this limit, and
    100 processes on 4 cores would be slower than 4."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    return math.inf


class GraderPool:
    """Calls functions in at most ``size`` worker processes (by default `cores`), each started when
    first needed. The pool's methods can be called from any thread."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or cores()
        self._workers: set[WorkerProcess] = set()
        self._reset()
        _pools.add(self)
        weakref.finalize(self, _kill_all, self._workers, os.getpid())

    def _reset(self) -> None:
        self._free = threading.Semaphore(self.size)
        self._lock = Lock()
        self._idle: list[WorkerProcess] = []
        self._workers.clear()

    def run(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float,
    ) -> Any:
        """Run a call in a worker and return its result. The call has a time limit; the wait for a
        worker does not.

        The function is sent in its current state; changes made to that state by the call stay in
        the worker.

        Raises:
            TimeoutError: no answer ``timeout`` seconds after the call began; the worker is killed.
            TypeError: the function, its arguments or its answer cannot be sent.
            GraderError: the worker could not load the call, died, or its exception cannot be sent.
            Exception: the function's own exception, with the worker's traceback as a note.
        """
        source, arguments = packed(call), packed_arguments(args, kwargs)
        with self._free:
            worker = self._idle_or_new()
            usable = False
            try:
                reply = worker.call(source, arguments, timeout)
                usable = True
            finally:  # also if the caller is interrupted: nothing will read that answer
                with self._lock:
                    if usable:
                        self._idle.append(worker)
                    else:
                        self._workers.discard(worker)
                if not usable:
                    worker.kill()
        return answer_of(reply)

    def _idle_or_new(self) -> "WorkerProcess":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()  # most recently used, so that few calls need few workers
                if worker.alive:
                    return worker
                self._workers.discard(worker)
                worker.kill()
            worker = WorkerProcess()
            self._workers.add(worker)
            return worker


class WorkerProcess:
    """A process that runs functions, one call at a time. Raises OSError if none can be started."""

    def __init__(self) -> None:
        self._known = Recent()
        self._calls = 0
        ours, theirs = socket.socketpair()
        with theirs:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # a message that stops half-way
                limit = struct.pack("ll", int(START_LIMIT), 0)
                ours.setsockopt(socket.SOL_SOCKET, option, limit)
            self._line = Connection(ours.detach())
            self._process = _spawned(theirs.fileno())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def call(self, source: bytes, arguments: bytes, timeout: float) -> tuple[Any, ...]:
        """Call a function pickled by `packed` and `packed_arguments`; `answer_of` reads the reply.
        Raises TimeoutError if there is no answer ``timeout`` seconds after the process began the
        call, or GraderError if the process ended, or its answer cannot be read."""
        digest = hashlib.blake2b(source, digest_size=16).digest()
        known = digest in self._known
        try:
            self._line.send_bytes(pickle.dumps((digest, b"" if known else source, arguments)))
            reply = self._read(START_LIMIT, f"a worker process did not start in {START_LIMIT} s")
            if reply[0] != "begun":
                return reply
            if not known:
                self._known.keep(digest, True)
            self._calls += 1
            first = " (in the first call of its process, which may have imported modules)"
            late = f"no answer within {timeout} s{first if self._calls == 1 else ''}"
            return self._read(timeout, late)
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            raise GraderError(f"the worker process {self._ended()}") from error

    def _read(self, timeout: float, late: str) -> tuple[Any, ...]:
        if not self._line.poll(timeout) and not self._line.poll(0):
            raise TimeoutError(late)
        message = self._line.recv_bytes(LARGEST_ANSWER)
        try:
            reply: tuple[Any, ...] = pickle.loads(message)
        except Exception as error:
            raise GraderError(f"its answer cannot be read here: {error!s:.200}") from error
        return reply

    def _ended(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "sent a message that cannot be read"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """Kill the process, along with any that its grader started in the same session."""
        if self.alive:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        # Closed last, because the process ending wakes a thread waiting for an answer.
        with contextlib.suppress(OSError):
            self._line.close()


def answer_of(reply: tuple[Any, ...]) -> Any:
    """Return the result of a call, or raise its exception with the process's traceback as a note.
    Raises GraderError if the process could not load the call or the exception could not be sent."""
    if reply[0] == "answer":
        return reply[1]
    kind, error, message, trace = reply
    raised: Exception | None = None
    if error is not None and kind == "raised":
        with contextlib.suppress(Exception):
            raised = pickle.loads(error)
    if raised is None:
        at = "" if kind == "raised" else "a worker process cannot load the call: "
        raised = GraderError(f"{at}{message}")
    raised.add_note(f"In the worker process:\n{trace}")
    raise raised


def packed_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Pickle the arguments of a call; raise TypeError naming an argument that cannot be sent."""
    try:
        return bytes(cloudpickle.dumps((tuple(args), dict(kwargs))))
    except Exception:
        for name, value in [*enumerate(args), *kwargs.items()]:
            try:
                cloudpickle.dumps(value)
            except Exception as error:
                raise TypeError(
                    f"argument {name!r} cannot be sent to a worker process "
                    f"({type(error).__name__}: {error!s:.200}); grade without a timeout, or take "
                    "the argument out of the function's signature"
                ) from error
        raise


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Pickles functions by value if their module cannot be imported by name in a worker, such as
    a file of reward functions that verl loads."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | type):
            name = str(obj.__module__).partition(".")[0]
            if name in sys.modules and name != "__main__" and not _importable(name):
                cloudpickle.register_pickle_by_value(sys.modules[name])
        return super().reducer_override(obj)


@functools.cache
def _importable(name: str) -> bool:
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(find(name, None) is not None for find in finders)


class _TooLargeError(Exception):
    pass


class _Bounded(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > LARGEST_GRADER:
            raise _TooLargeError
        return super().write(data)


# A worker dies with the *thread* that started it, so one long-lived thread starts them all.
_Start = tuple[int, "Future[subprocess.Popen[bytes]]"]
_starts: queue.SimpleQueue[_Start] | None = None
_starts_lock = Lock()
_pools: weakref.WeakSet[GraderPool] = weakref.WeakSet()


def _spawned(descriptor: int) -> subprocess.Popen[bytes]:
    global _starts
    with _starts_lock:
        if _starts is None:
            _starts = queue.SimpleQueue()
            name = "grpo-guard-graders"
            threading.Thread(target=_spawn, args=(_starts,), daemon=True, name=name).start()
    started: Future[subprocess.Popen[bytes]] = Future()
    _starts.put((descriptor, started))
    return started.result()


def _spawn(starts: queue.SimpleQueue[_Start]) -> None:
    while True:
        descriptor, started = starts.get()
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        command = [sys.executable, "-P", "-c", _BOOT, paths, str(descriptor), str(os.getpid())]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[descriptor], start_new_session=True
            )
        except Exception as error:
            started.set_exception(error)
        else:
            started.set_result(process)
        del started


def _kill_all(workers: Iterable[WorkerProcess], owner: int) -> None:
    if os.getpid() == owner:  # a forked child has the list, but the workers belong to its parent
        for worker in list(workers):
            worker.kill()


def _forget() -> None:
    """Make a forked child start its own workers."""
    global _starts, _starts_lock
    _starts, _starts_lock = None, Lock()
    for pool in list(_pools):
        pool._reset()


os.register_at_fork(after_in_child=_forget)
