"""Landlock: no file can be opened, no TCP port reached, and no signal sent out of the domain.

A second wall behind the system-call filter, set once for the server and all of its children. No
rules are added, so everything that a version of Landlock handles is denied. (linux/landlock.h)
"""

import ctypes
import os
import struct
from typing import Final

from .kernel import UnavailableError, libc, machine

_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_VERSION_FLAG: Final = 1
# File rights by version: 13 at first, then also refer, truncate, and ioctl on devices.
_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS_NOW: Final = 16
_NET_BIND_AND_CONNECT: Final = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 3


def restrict() -> str:
    """Irrevocably deny everything this kernel's Landlock handles. Needs PR_SET_NO_NEW_PRIVS.

    Returns:
        The version of Landlock in use.

    Raises:
        UnavailableError: the kernel has no Landlock, or Landlock is turned off.
    """
    machine()
    version = libc("syscall", _CREATE_RULESET, 0, 0, _VERSION_FLAG)
    if version < 1:
        raise UnavailableError("Landlock is turned off")
    rights = (1 << _FILE_RIGHTS.get(version, _FILE_RIGHTS_NOW)) - 1
    handled = struct.pack(
        "QQQ",
        rights,
        _NET_BIND_AND_CONNECT if version >= 4 else 0,
        _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    memory = ctypes.create_string_buffer(handled, len(handled))
    rules = libc("syscall", _CREATE_RULESET, memory, size, 0)
    try:
        libc("syscall", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return f"version {version}"
