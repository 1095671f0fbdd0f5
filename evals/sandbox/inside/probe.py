"""Verifies the lock: a locked child tries four ways out and reports which ones are open."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_READABLE: Final = ("/", "/etc/passwd", "/proc/self/environ")
_WRITABLE: Final = ("/tmp", "/dev/shm", "/var/tmp")
# A port without a listener: what matters is whether the network or the port refuses the attempt.
_NOWHERE: Final = ("127.0.0.1", 9)
_NO_NETWORK: Final = (errno.EPERM, errno.EACCES, errno.ENETUNREACH, errno.ENETDOWN)


def _files() -> bool:
    for path in _READABLE:
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY))
            return True
    for path in _WRITABLE:
        with suppress(OSError):
            # An unnamed file leaves nothing behind if the attempt succeeds.
            os.close(os.open(path, os.O_RDWR | getattr(os, "O_TMPFILE", os.O_DIRECTORY)))
            return True
    return False


def _network() -> bool:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        try:
            with socket.socket(socket.AF_INET, kind) as made:
                made.connect(_NOWHERE)
        except OSError as error:
            if error.errno not in _NO_NETWORK:
                return True
        else:
            return True
    return False


def _processes() -> bool:
    with suppress(OSError):
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        return True
    return False


def _signals() -> bool:
    with suppress(OSError):
        os.kill(os.getppid(), 0)
        return True
    return False


WAYS: Final[dict[str, Callable[[], bool]]] = {
    "files": _files,
    "network": _network,
    "processes": _processes,
    "signals": _signals,
}


def open_ways() -> int:
    """Try each way out of a locked child; return one bit per open way, in the order of `WAYS`."""
    # As any program could; otherwise the limit on descriptors alone would make every way look shut.
    os.close(0)
    return sum(1 << index for index, attempt in enumerate(WAYS.values()) if attempt())
