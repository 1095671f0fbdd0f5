"""Join a running Ray cluster, or start one on this machine."""

import logging
import os
import socket
import sys
from importlib.util import find_spec
from typing import Final

from grpo_guard.core.forks import Lock
from grpo_guard.guard.workers.pool import WorkersError

CONNECT_SECONDS: Final = 10.0


class RayMissingError(ModuleNotFoundError):
    """Ray is not installed."""


class ClusterError(WorkersError):
    """A cluster cannot be reached, or its workers do not start."""


def require_ray(what: str = "--engine ray") -> None:
    """Raise RayMissingError if Ray, which ``what`` needs, is not installed."""
    if find_spec("ray") is None:
        raise RayMissingError(
            f"ray: expected to be installed for {what}; pip install 'grpo-guard[ray]'"
        )


def connect(address: str | None = None) -> bool:
    """Join a Ray cluster, unless this process has joined one already; return whether the caller has
    to call ``ray.shutdown()``. The address defaults to ``RAY_ADDRESS``, or else to a new cluster on
    this machine. Raises RayMissingError if Ray is not installed, and ClusterError if the cluster
    cannot be reached."""
    require_ray()
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's ports are open to the network, and its clients can run code. Ray reads this once,
        # on import: if it is set later, one half of Ray refuses the other.
        if "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if ray.is_initialized():
        return False
    _check_listening(address)
    try:
        ray.init(
            address=address, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except (ConnectionError, RuntimeError) as error:
        raise ClusterError(f"ray: expected a cluster at {address}, got {error}") from error
    return True


class _Shared:
    """The cluster that several users in this process share. The last user to leave shuts Ray down,
    unless the process had already joined the cluster on its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self.begun = False

    def join(self, address: str | None) -> None:
        """Join the cluster, as `connect` does."""
        with self._lock:
            self.begun = connect(address) or self.begun
            self._users += 1

    def leave(self) -> None:
        """Leave the cluster; call this once for each `join`."""
        with self._lock:
            self._users -= 1
            if self.begun and not self._users:
                import ray

                self.begun = False
                ray.shutdown()


shared: Final = _Shared()


def _check_listening(address: str) -> None:
    """Check that something is listening at an address; Ray itself would keep trying for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"ray: expected a cluster at {address}, got {error}") from error
