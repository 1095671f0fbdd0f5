"""Keep forked child processes working: a fork copies locks in whatever state they are in.

If a guard is in use in one thread while another thread forks, the child finds the guard's locks
held by a thread that it does not have, and would wait for them forever.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar, overload
from weakref import WeakSet

T = TypeVar("T")


def when_parent_ends(action: Callable[[], object]) -> None:
    """Call a function, in a thread, when the process that started this one ends. A child of
    `multiprocessing` whose parent is killed would wait forever. Does nothing in other processes."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        action()

    threading.Thread(target=wait, name="parent", daemon=True).start()


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

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class cached_property(Generic[T]):
    """`functools.cached_property` without its lock, as in Python 3.12.

    Until 3.11 all instances share a lock while one computes: a completion that takes long, in a
    thread that was given up on, would hold up every other completion.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = self._function(instance)
        # An instance's own attributes take precedence over this, which has no __set__.
        instance.__dict__[self._name] = value
        return value
