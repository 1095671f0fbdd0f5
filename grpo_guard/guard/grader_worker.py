"""A worker process that runs graders, one call at a time, on its main thread.

`grpo_guard.guard.grader_pool` starts the process, and kills it when a call takes too long. Signal
alarms need the main thread, and only a process can be stopped at any point.
"""

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import cloudpickle

# Maximum number of loaded graders that a worker keeps, so that anything a grader builds in its
# first call is built only once.
MOST_GRADERS: Final = 8
_SET_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


inside: bool = False
"""Whether this process is itself a worker. By default, guards in a worker do not start workers."""


class Recent(dict[bytes, Any]):
    """The most recent graders, by digest; the pool and its worker drop the same graders."""

    def keep(self, digest: bytes, grader: Any) -> None:
        """Add a grader, and drop the oldest if there are too many."""
        self[digest] = grader
        if len(self) > MOST_GRADERS:
            del self[next(iter(self))]


def main(descriptor: int, parent: int) -> None:
    """Serve grading requests from a socket until the pool closes its end.

    This process is killed when the pool's process, ``parent``, ends, even in the middle of a call.
    """
    global inside
    inside = True
    os.set_inheritable(descriptor, False)  # a grader can start processes
    _die_with(parent)
    graders = Recent()
    with Connection(descriptor) as line:
        while True:
            try:
                request = line.recv_bytes()
            except (EOFError, OSError):
                return
            _serve(line, graders, request)


def _serve(line: Connection, graders: Recent, request: bytes) -> None:
    try:
        digest, source, arguments = pickle.loads(request)
        if digest not in graders:
            graders.keep(digest, pickle.loads(source))
        args, kwargs = pickle.loads(arguments)
    except BaseException as error:
        line.send_bytes(pickle.dumps(("unreadable", *_described(error))))
        return
    line.send_bytes(pickle.dumps(("begun",)))  # the clock starts here
    line.send_bytes(_graded(graders[digest], args, kwargs))


def _graded(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        try:
            answer = call(*args, **kwargs)
        finally:
            # A leftover alarm would go off in the next call.
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    except BaseException as error:  # includes exit() in a completion that a grader runs
        return pickle.dumps(("raised", *_described(error)))
    try:
        return bytes(cloudpickle.dumps(("answer", answer)))
    except Exception as error:
        refusal = TypeError(f"the answer cannot be sent to the caller: {error!s:.200}")
        return pickle.dumps(("raised", *_described(refusal)))


def _described(error: BaseException) -> tuple[bytes | None, str, str]:
    """The pickled exception, or None if it cannot be pickled; its message; and its traceback."""
    trace = "".join(traceback.format_exception(error))[-4000:]
    message = f"{type(error).__name__}: {error!s:.200}"
    if not isinstance(error, Exception):
        return None, message, trace
    try:
        packed = cloudpickle.dumps(error)
        pickle.loads(packed)  # some can be pickled but not unpickled
    except Exception:
        return None, message, trace
    return bytes(packed), message, trace


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        # Done by the kernel: no Python runs while a grader is stuck in a regular expression.
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before the watch began
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
