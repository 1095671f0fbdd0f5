"""Where the nodes of a swarm stand: objects by name, in this process or, on Ray, anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Session:
    """Nodes in this process: they share the caller's objects and answer one after the other.

    Attributes:
        remote: The nodes hold copies of what they are given, and compute at the same time.
    """

    remote = False

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}

    def put(self, value: Any) -> Any:
        """Store a value once for all nodes."""
        return value

    def start(self, name: str, kind: type, *args: Any, **kwargs: Any) -> None:
        """Begin a node; `stand` waits for it."""
        self.actors[name] = kind(*args, **kwargs)

    def stand(self) -> None:
        """Wait until all nodes stand."""

    def call(self, name: str, method: str, *args: Any) -> Any:
        """Ask one node; what comes back may be a promise, and may be an argument of `ask`."""
        return getattr(self.actors[name], method)(*args)

    def ask(self, calls: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """(method, arguments ...) for each node; their answers in the same order."""
        return {name: self.call(name, *call) for name, call in calls.items()}

    def close(self) -> None:
        """Give back what the nodes hold."""
        self.actors.clear()
