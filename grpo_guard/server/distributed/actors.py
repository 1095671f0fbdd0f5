"""Ray actors as the workers of a `Pool`."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from grpo_guard.guard.workers.pool import Pool
from grpo_guard.server.distributed.cluster import ClusterError, shared

_ROOM_SECONDS: Final = 10.0


class Actors:
    """Starts actors of a class on a Ray cluster that this process has joined. The class has
    ``start()``, which sets a worker up and returns a description, and ``read(part, ...)``, which
    returns one answer per element. ``resources`` of a worker are by Ray resource name; fractions
    are allowed, as in ``{"CPU": 1, "GPU": 0.5}``. ``timeout`` limits the seconds for one part."""

    label = "ray"
    start_seconds = 600.0
    """Time limit for starting a worker, in seconds, which may include loading a model."""
    absent = "what `make` needs (packages, files, GPUs) has to be on every machine of the cluster"
    error = ClusterError

    def __init__(
        self, kind: type, args: tuple[Any, ...], resources: Mapping[str, float], timeout: float
    ) -> None:
        import ray

        self._ray: Any = ray
        self._resources = {"CPU": 1.0, **resources}
        custom = {k: v for k, v in self._resources.items() if k not in ("CPU", "GPU")}
        self._kind = ray.remote(
            num_cpus=self._resources["CPU"], num_gpus=self._resources.get("GPU", 0.0),
            resources=custom, max_restarts=0, scheduling_strategy="SPREAD",
        )(kind)  # fmt: skip
        self._args, self._timeout = args, timeout

    def start(self) -> Any:
        """Start an actor."""
        self._require_ray()
        return self._kind.remote(*self._args)

    def ask(self, worker: Any, method: str, *args: Any) -> Future[Any]:
        """Call a method of an actor."""
        self._require_ray()
        asked: Future[Any] = getattr(worker, method).remote(*args).future()
        return asked

    def end(self, worker: Any) -> None:
        """Kill an actor."""
        if self._ray.is_initialized():
            self._ray.kill(worker)

    def seconds(self, objects: Sequence[Any]) -> float:
        """Return the maximum time for one part, in seconds."""
        return self._timeout

    def lacks(self) -> str:
        """Describe what an actor needs, and what the cluster has free."""
        return f"each needs {self._resources}, the cluster has {self._free()} free"

    def is_memory(self, error: BaseException) -> bool:
        """Whether an actor was lost because memory ran out."""
        return isinstance(error, self._ray.exceptions.OutOfMemoryError | MemoryError)

    def room(self) -> int:
        """Return how many actors the cluster has room for, at least 1."""
        there = self._ray.cluster_resources()
        each = [there.get(k, 0.0) / v for k, v in self._resources.items() if v]
        return max(1, int(min(each, default=1.0)))

    def require_room(self, workers: int) -> None:
        """Raise ClusterError if there is no room for this many workers: a cluster on this machine
        never grows, so there is no point in waiting."""
        until = time.monotonic() + _ROOM_SECONDS  # released resources show up a little later
        while short := self._short_of(self._free(), workers):
            if time.monotonic() > until:
                name, each, free = short
                raise ClusterError(
                    f"workers, resources: expected room for {workers} x {each:g} {name} on "
                    f"this machine, got {free:g}; take fewer workers, or a smaller share each by "
                    f"resources={{{name!r}: ...}}"
                )
            time.sleep(0.2)

    def _free(self) -> dict[str, float]:
        free: dict[str, float] = self._ray.available_resources()
        return {name: free.get(name, 0.0) for name in self._resources}

    def _short_of(self, free: Mapping[str, float], workers: int) -> tuple[str, float, float] | None:
        for name, each in self._resources.items():
            if each * workers > (left := free.get(name, 0.0)) + 1e-9:
                return name, each, left
        return None

    def _require_ray(self) -> None:
        """Raise ClusterError if Ray is no longer running; otherwise the next call would start a new
        cluster that nobody shuts down."""
        if not self._ray.is_initialized():
            raise ClusterError("Ray was shut down in this process")


def joined(
    kind: type,
    args: tuple[Any, ...],
    *,
    workers: int | None,
    resources: Mapping[str, float] | None,
    timeout: float,
    address: str | None,
    owner: object,
) -> tuple[Pool, Callable[[], object]]:
    """Join a cluster and start workers, as many as it has room for if ``workers`` is None; return
    them, and a function that ends them and leaves the cluster. The function is also called when
    ``owner``, which uses the workers, is garbage-collected. The other arguments are those of
    `Actors` and `connect`. Raises ValueError if a number is out of range, and ClusterError if there
    is no room."""
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ValueError(f"workers: expected an integer >= 1 or None, got {workers!r}")
    for name, share in (resources or {}).items():
        if type(share) not in (int, float) or share < 0:
            raise ValueError(f"resources.{name}: expected a number >= 0, got {share!r}")
    if type(timeout) not in (int, float) or not timeout > 0:
        raise ValueError(f"timeout: expected seconds above 0, got {timeout!r}")
    shared.join(address)
    try:
        actors = Actors(kind, args, resources or {}, timeout)
        workers = workers or actors.room()
        if shared.begun:
            actors.require_room(workers)
        pool = Pool(actors, workers)
    except BaseException:
        shared.leave()
        raise
    return pool, weakref.finalize(owner, _close, pool)


def _close(pool: Pool) -> None:
    pool.close()
    shared.leave()
