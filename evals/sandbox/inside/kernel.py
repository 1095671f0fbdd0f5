"""System calls that Python does not wrap, by number and through libc.

The modules in this folder run in a separate process that must stay small: they import each other
relatively, and nothing else from the library.
"""

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_SET_NO_NEW_PRIVS: Final = 38


class UnavailableError(Exception):
    """Raised if a layer of confinement is not available on this system; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The constants that differ between processors.

    Args:
        audit: The kernel's constant for the processor (``AUDIT_ARCH_*``, linux/audit.h).
        allowed: Numbers of the system calls that a program may make; see `seccomp`.
        mmap, mprotect, futex: Numbers of allowed calls whose arguments are also checked.
        pivot_root, capset: Numbers of calls that libc does not wrap.
    """

    audit: int
    allowed: tuple[int, ...]
    mmap: int
    mprotect: int
    futex: int
    pivot_root: int
    capset: int


# In the order of the list in `seccomp`. From asm/unistd_64.h and asm-generic/unistd.h.
X86_64: Final = Machine(
    audit=0xC000003E,
    allowed=(
        *(0, 1, 19, 20, 3, 5, 8),
        *(11, 12, 25, 28),
        *(13, 14, 15, 131),
        *(24, 35, 230, 228, 229, 96, 201, 100, 98),
        *(39, 110, 186, 102, 107, 104, 108),
        *(318, 60, 231, 219),
    ),
    mmap=9,
    mprotect=10,
    futex=202,
    pivot_root=155,
    capset=126,
)
AARCH64: Final = Machine(
    audit=0xC00000B7,
    allowed=(
        *(63, 64, 65, 66, 57, 80, 62),
        *(215, 214, 216, 233),
        *(134, 135, 139, 132),
        *(124, 101, 115, 113, 114, 169, 153, 165),
        *(172, 173, 178, 174, 175, 176, 177),
        *(278, 93, 94, 128),
    ),
    mmap=222,
    mprotect=226,
    futex=98,
    pivot_root=41,
    capset=91,
)
_MACHINES: Final = {"x86_64": X86_64, "aarch64": AARCH64}


def machine() -> Machine:
    """Return the constants for this machine.

    Raises:
        UnavailableError: not Linux, an unlisted processor, or a 32-bit interpreter.
    """
    found = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or found is None or sys.maxsize < 2**32:
        raise UnavailableError(
            f"needs 64-bit Linux on x86_64 or aarch64, this is {sys.platform} {platform.machine()}"
        )
    return found


def libc(name: str, *arguments: Any) -> int:
    """Call a libc function that returns -1 and sets ``errno`` on failure.

    Raises:
        UnavailableError: the call failed, or this libc does not have the function.
    """
    library = ctypes.CDLL(None, use_errno=True)
    try:
        function = getattr(library, name)
    except AttributeError:
        raise UnavailableError(f"this libc has no {name}") from None
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = function(*given)
    if result == -1:
        number = ctypes.get_errno()
        raise UnavailableError(f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, value: Any, pointer: Any = 0) -> None:
    """Call ``prctl(2)``; raise `UnavailableError` if the kernel refuses."""
    libc("prctl", option, value, pointer, 0, 0)
