"""A cluster that is there already, or a Ray of our own on this machine."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from importlib.util import find_spec
from typing import Final

CONNECT_SECONDS: Final = 10.0


class RayMissingError(ModuleNotFoundError):
    """Ray is not installed."""


class ClusterError(ConnectionError):
    """A cluster cannot be reached, or its workers do not start."""


def require_ray(what: str = "--engine ray") -> None:
    """Do nothing where Ray is installed.

    Args:
        what: Needs it.

    Raises:
        RayMissingError: it is not.
    """
    if find_spec("ray") is None:
        raise RayMissingError(
            f"ray: expected to be installed for {what}; pip install 'grpo-guard[ray]'"
        )


def connect(address: str | None = None) -> bool:
    """Join a Ray; nothing where this process has joined one.

    Args:
        address: Of a running cluster; None = ``RAY_ADDRESS``, or a Ray of our own on this machine.

    Returns:
        Whether it was begun or joined here, so that whoever called ends it by ``ray.shutdown()``.

    Raises:
        RayMissingError: Ray is not installed.
        ClusterError: the cluster cannot be reached.
    """
    require_ray()
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Its ports are open to the network, and whoever may call them may run code. Ray reads this
        # once, when it is imported: set later, it has one half of Ray refuse the other.
        if "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if ray.is_initialized():
        return False
    _knock(address)
    try:
        ray.init(
            address=address, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except (ConnectionError, RuntimeError) as error:
        raise ClusterError(f"ray: expected a cluster at {address}, got {error}") from error
    return True


class _Shared:
    """The Ray that several users in this process share; the last of them ends what was begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self.begun = False

    def join(self, address: str | None) -> None:
        """As `connect`."""
        with self._lock:
            self.begun = connect(address) or self.begun
            self._users += 1

    def leave(self) -> None:
        """Once for each `join`."""
        with self._lock:
            self._users -= 1
            if self.begun and not self._users:
                import ray

                self.begun = False
                ray.shutdown()


shared: Final = _Shared()


def _knock(address: str) -> None:
    """Ray itself tries for minutes to reach an address at which nobody listens."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"ray: expected a cluster at {address}, got {error}") from error
