"""A process that grades: it runs one call at a time on its main thread, until it is killed.

Started by `grpo_guard.guard.grader_pool`, which kills it when a call takes too long. Signal alarms
need the main thread, and only a process can be stopped in the middle of anything.
"""

from __future__ import annotations

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

# Loaded graders that a worker keeps, so that what they build in their first call is built once.
MOST_GRADERS: Final = 8
_SET_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


inside: bool = False
"""Whether this process is a worker itself. Guards in it start no further ones by default."""


class Recent(dict[bytes, Any]):
    """The most recent graders by digest; the pool and its worker drop the same ones."""

    def keep(self, digest: bytes, grader: Any) -> None:
        """Add one, and drop the oldest if there are too many."""
        self[digest] = grader
        if len(self) > MOST_GRADERS:
            del self[next(iter(self))]


def main(descriptor: int, parent: int) -> None:
    """Grade requests from a socket until the pool closes its end.

    When the pool's process, ``parent``, ends, this one is killed, even in the middle of a call.
    """
    global inside
    inside = True
    os.set_inheritable(descriptor, False)  # a grader may start processes
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
    """The exception itself if it can be pickled, its message and its traceback."""
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
    if os.getppid() != parent:  # it ended before the watch began
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
