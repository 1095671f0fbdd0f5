"""Keep forked child processes working: a fork copies locks in whatever state they are in.

If a guard is in use in one thread while another thread forks, the child finds the guard's locks
held by a thread that it does not have, and would wait for them forever.
"""

import os
import threading
import time
from contextlib import suppress
from typing import Final, Protocol, Self
from weakref import WeakSet

MOST_SECONDS: Final = 1.0
"""Maximum time that a fork waits for files in use."""


class _Renewed(Protocol):
    def after_fork(self) -> None: ...


_renewed: WeakSet[_Renewed] = WeakSet()


def renew_in_children(item: _Renewed) -> None:
    """Call ``item.after_fork()`` in each forked child process, before any other code runs there."""
    _renewed.add(item)


def _renew() -> None:
    for item in list(_renewed):
        item.after_fork()


os.register_at_fork(after_in_child=_renew)


class HoldsFile(Protocol):
    """Something that may have an open SQLite file, and only while it holds a lock of its own."""

    @property
    def file_lock(self) -> "Lock":
        """The lock that guards the file."""

    def close_file(self) -> None:
        """Close the file, which is opened again when it is next needed."""


_files: WeakSet[HoldsFile] = WeakSet()
_forking = threading.local()


def close_before_forks(item: HoldsFile) -> None:
    """Close ``item``'s file before each fork, and hold its lock until the fork is over.

    SQLite remembers per process which locks it has on a file, but a fork does not inherit the locks
    themselves. A child that inherits an open file believes that it has locked the file. Another
    process then deletes the log that the child writes to, and whatever it writes is lost.
    """
    _files.add(item)


def _close_files() -> None:
    held: list[Lock] = []
    _forking.held = held
    deadline = time.monotonic() + MOST_SECONDS
    for item in list(_files):
        lock = item.file_lock
        if lock.acquire(max(0.0, deadline - time.monotonic())):
            held.append(lock)
            item.close_file()


def _release_files() -> None:
    held: list[Lock] = getattr(_forking, "held", [])
    while held:
        held.pop().release()


os.register_at_fork(before=_close_files, after_in_parent=_release_files)


class Lock:
    """A reentrant lock that is free in a forked child process, and in a pickled copy.

    Examples:
        >>> lock = Lock()
        >>> with lock:
        ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        renew_in_children(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the lock; return whether this thread has it."""
        return self._lock.acquire(timeout=seconds)

    def release(self) -> None:
        """Release the lock. In a child that was forked while this thread held it, it is free."""
        with suppress(RuntimeError):
            self._lock.release()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()
