"""Hosts a swarm's nodes as named objects in this process or, with Ray, anywhere in a cluster."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from grpo_guard.server.distributed.cluster import ClusterError, connect

CPUS_PER_NODE: Final = 0.1
"""CPUs reserved for each node: nodes wait for one another, so one core can serve several."""
START_SECONDS: Final = 600.0
"""Time limit for all actors to become ready: they load torch and their policy."""


class Session:
    """Nodes in this process, which share the caller's objects and answer one after the other.

    Attributes:
        remote: Whether nodes hold copies of their arguments and compute at the same time.
    """

    remote = False

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}

    def put(self, value: Any) -> Any:
        """Store a value once for all nodes."""
        return value

    def start(self, name: str, kind: type, *args: Any, **kwargs: Any) -> None:
        """Create a node; `stand` waits for it."""
        self.actors[name] = kind(*args, **kwargs)

    def stand(self) -> None:
        """Wait until all nodes are ready."""

    def call(self, name: str, method: str, *args: Any) -> Any:
        """Call a method of one node; the result can be a promise, which `ask` accepts."""
        return getattr(self.actors[name], method)(*args)

    def ask(self, calls: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call (method, arguments ...) on each node; return the answers in the same order."""
        return {name: self.call(name, *call) for name, call in calls.items()}

    def close(self) -> None:
        """Release the nodes' resources."""
        self.actors.clear()


class NodeLostError(ConnectionError):
    """Raised if an actor ended or never started; the last checkpoint is intact."""


class RaySession(Session):
    """Nodes as Ray actors, by name.

    A Ray cluster initialised by the caller or named in ``RAY_ADDRESS`` is left running; a cluster
    started here ends with :meth:`close`.

    Raises:
        RayMissingError: Ray is not installed.
        NodeLostError: the cluster cannot be reached.
    """

    remote = True

    def __init__(self) -> None:
        super().__init__()
        try:
            self._ours = connect()
        except ClusterError as error:
            raise NodeLostError(str(error)) from error
        import ray

        self.ray: Any = ray

    def put(self, value: Any) -> Any:
        """Store a value once for all actors."""
        return self.ray.put(value)

    def start(self, name: str, kind: type, *args: Any, **kwargs: Any) -> None:
        """Create an actor; `stand` waits for it."""
        remote = self.ray.remote(num_cpus=CPUS_PER_NODE, scheduling_strategy="SPREAD")(kind)
        self.actors[name] = remote.remote(*args, **kwargs)

    def stand(self) -> None:
        """Wait until all actors are ready."""
        self.ask(
            dict.fromkeys(self.actors, ("ready", torch.get_num_threads())), seconds=START_SECONDS
        )

    def call(self, name: str, method: str, *args: Any) -> Any:
        """Call a method of one actor and return a promise for its answer."""
        return getattr(self.actors[name], method).remote(*args)

    def ask(
        self, calls: Mapping[str, tuple[Any, ...]], *, seconds: float | None = None
    ) -> dict[str, Any]:
        """Call (method, arguments ...) on all actors at once; return answers in the same order.

        Raises:
            NodeLostError: an actor ended.
            Exception: whatever an actor's method raised, unchanged.
        """
        promised = {name: self.call(name, *call) for name, call in calls.items()}
        errors = self.ray.exceptions
        found: dict[str, Any] = {}
        for name, promise in promised.items():
            try:
                found[name] = self.ray.get(promise, timeout=seconds)
            except errors.RayTaskError as error:
                raise error.cause from error
            except errors.GetTimeoutError as error:
                raise NodeLostError(
                    f"{name}: expected its actor to be ready within {seconds:.0f} s; does the "
                    f"cluster have {CPUS_PER_NODE} free CPUs for each of {len(self.actors)} actors?"
                ) from error
            except errors.RayError as error:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise NodeLostError(
                    f"{name}: expected its actor to answer, but it ended: {reason[0]:.300}"
                ) from error
        return found

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        if not self.ray.is_initialized():
            return
        for actor in self.actors.values():
            self.ray.kill(actor)
        self.actors.clear()
        if self._ours:
            self.ray.shutdown()
