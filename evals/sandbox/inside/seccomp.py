"""The system calls that a program may make: those needed to compute, and no others.

This is a list of allowed calls rather than forbidden ones, so calls added by future kernels (as
io_uring once was) are refused without being known. Everything that a program needs is loaded before
the filter is set, so none of the listed calls takes a path, makes a socket, a process or a
descriptor, or sends a signal. The allowed calls, whose numbers are in `kernel`:

    read write readv writev close fstat lseek           on the three descriptors it was given
    munmap brk mremap madvise                           memory, within RLIMIT_AS
    rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack  its own handlers; it can send no signal
    sched_yield nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time
    times getrusage
    getpid getppid gettid getuid geteuid getgid getegid
    getrandom exit exit_group restart_syscall
    mmap mprotect                                       unless the memory is to be executable
    futex                                               to wait and to wake, nothing more

A refused call fails with EPERM: an honest program that tries to open a file sees PermissionError.
``fstat`` is allowed and ``newfstatat`` is not, because the latter also takes paths.
"""

import ctypes
import struct
from typing import Final

from .kernel import PR_SET_SECCOMP, Machine, prctl

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_KILL: Final = 0x80000000
_EPERM: Final = 0x00050000 | 1
_ALLOW: Final = 0x7FFF0000

# Offsets in struct seccomp_data. The kernel itself uses only the low half of these arguments.
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_SECOND_ARGUMENT: Final = 16 + 1 * 8
_THIRD_ARGUMENT: Final = 16 + 2 * 8

# x86_64 has a second table of calls for 32-bit pointers, from this number on.
_X32: Final = 0x40000000
_PROT_EXEC: Final = 4
_MODE_FILTER: Final = 2
# FUTEX_WAIT, WAKE, WAIT_BITSET, WAKE_BITSET; the mask leaves out FUTEX_PRIVATE and CLOCK_REALTIME.
# The other operations move waiters and lend priorities, which a single thread's locks never need.
_FUTEX_OPERATIONS: Final = (0, 1, 9, 10)
_FUTEX_MASK: Final = 0x7F


def build(here: Machine) -> bytes:
    """Build the filter for a machine, as an array of ``struct sock_filter``."""
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A program can switch to the 32-bit table of calls, whose numbers mean different things.
        (_EQUAL, 1, 0, here.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in here.allowed:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += [
        (_EQUAL, 0, len(_FUTEX_OPERATIONS) + 4, here.futex),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_AND, 0, 0, _FUTEX_MASK),
    ]
    for index, operation in enumerate(_FUTEX_OPERATIONS):
        code.append((_EQUAL, len(_FUTEX_OPERATIONS) - index, 0, operation))
    code += [
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 2, 0, here.mmap),
        (_EQUAL, 1, 0, here.mprotect),
        (_RETURN, 0, 0, _EPERM),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_ANY_BIT, 0, 1, _PROT_EXEC),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(code: bytes) -> None:
    """Irrevocably install the filter for this process. Needs PR_SET_NO_NEW_PRIVS.

    Raises:
        UnavailableError: the kernel refuses the filter, in which case nothing has changed.
    """
    memory = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(memory, ctypes.c_void_p))
    prctl(PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program))
