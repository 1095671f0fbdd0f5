"""Namespaces: an empty file system, no network, no other processes, and no identity.

A third wall, set once for the server. The process that calls `enter` stays outside and waits; the
call returns in a child, process 1 of the new namespace, with which all processes in it end.
"""

import ctypes
import os
import signal
import struct
from contextlib import suppress
from typing import Final

from .kernel import PR_SET_PDEATHSIG, UnavailableError, libc, machine, prctl

_NEWNS: Final = 0x00020000
_NEWCGROUP: Final = 0x02000000
_NEWUTS: Final = 0x04000000
_NEWIPC: Final = 0x08000000
_NEWUSER: Final = 0x10000000
_NEWPID: Final = 0x20000000
_NEWNET: Final = 0x40000000
_ALL_BUT_PID: Final = _NEWNS | _NEWCGROUP | _NEWUTS | _NEWIPC | _NEWNET

_RDONLY_NOSUID_NODEV_NOEXEC: Final = 1 | 2 | 4 | 8
_REC_PRIVATE: Final = 0x4000 | 0x40000
_DETACH: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

# Any folder will do: only the server sees what is mounted there.
_MOUNT_POINTS: Final = (b"/tmp", b"/var", b"/usr", b"/dev")
NOBODY: Final = 65534


def enter() -> str:
    """Enter new namespaces in a child process; the caller waits for it and exits with its code.

    Returns:
        How the namespaces were created; the call returns only in the child.

    Raises:
        UnavailableError: the kernel refuses a namespace; others might have been entered.
    """
    how = _unshare()
    _empty_root()
    # Last, because the next child is then process 1, and no child can be made after it has ended.
    libc("unshare", _NEWPID)
    child = os.fork()
    if child:
        os.closerange(0, 256)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    return how


def _unshare() -> str:
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        # Root's own namespaces first: the new user namespace can be forbidden to ordinary users.
        with suppress(UnavailableError):
            libc("unshare", _ALL_BUT_PID)
            return "as root"
    libc("unshare", _ALL_BUT_PID | _NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        # Refused to root without capabilities; the next steps do not depend on it.
        with suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return "in a user namespace"


def _empty_root() -> None:
    """Make an empty read-only file system the root, and detach the old one."""
    libc("mount", None, b"/", None, _REC_PRIVATE, None)
    refused = UnavailableError("nothing to mount on")
    for point in _MOUNT_POINTS:
        try:
            libc(
                "mount",
                b"empty",
                point,
                b"tmpfs",
                _RDONLY_NOSUID_NODEV_NOEXEC,
                b"size=4k,nr_inodes=2,mode=555",
            )
            break
        except UnavailableError as error:
            refused = error
    else:
        raise refused
    os.chdir(point)
    # The new root briefly covers the old one: pivot_root(2), "pivot_root(".", ".")".
    libc("syscall", machine().pivot_root, b".", b".")
    libc("umount2", b".", _DETACH)
    os.chdir("/")


def drop_privileges() -> str:
    """Become the user nobody if possible, and drop every capability.

    Returns:
        The resulting user, as text.
    """
    if os.geteuid() == 0:
        # Refused in a container that is not allowed to change its user; we stay root without
        # capabilities.
        with suppress(OSError):
            os.setgroups([])
        with suppress(OSError):
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    with suppress(UnavailableError):
        header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
        libc("syscall", machine().capset, header, ctypes.create_string_buffer(24))
    return f"user {os.geteuid()}"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    with suppress(UnavailableError):
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
