"""What is known of nodes: under one lock, in a store or in its object, and as JSON."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpo_guard.nodes.store import Kept, NodeStore


class Memory:
    """Safe to share between threads and, in a store that lasts, between processes.

    Args:
        store: Where it lies, for several processes and the next start; None: in this object.
        name: Of the memory in the store.
    """

    def __init__(self, store: NodeStore | None, name: str) -> None:
        self._lock = threading.RLock()
        self._kept = Kept(store, name, self._state, self._take_up)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold it to change it: up to date inside, and written behind. Nothing slow in here."""
        with self._lock, self._kept.held():
            yield

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Hold it to read it, with what other processes have written."""
        with self._lock:
            self._kept.refresh()
            yield

    def state_dict(self) -> dict[str, Any]:
        """What is known as plain JSON values."""
        with self._read():
            return self._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in place of what is known.

        Raises:
            ValueError: it is not of that form.
        """
        with self._held():
            self._take_up(state)

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What `state_dict` gives."""

    @abstractmethod
    def _take_up(self, state: dict[str, Any]) -> None:
        """What `load_state_dict` does; it raises, and changes nothing, where it is no state."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
