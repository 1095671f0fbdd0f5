"""The system-call filter, evaluated by the rules of the kernel's own machine."""

import struct

import pytest

from grpo_guard.evals.sandbox.inside import seccomp
from grpo_guard.evals.sandbox.inside.kernel import AARCH64, X86_64, Machine

KILL, REFUSE, ALLOW = 0x80000000, 0x00050001, 0x7FFF0000


def decide(code: bytes, audit: int, number: int, *arguments: int) -> int:
    """Evaluate a filter by the rules of classic BPF (linux/filter.h)."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *(arguments + (0,) * 6)[:6])
    program = list(struct.iter_unpack("HBBI", code))
    at = value = 0
    while True:
        kind, yes, no, constant = program[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif kind == 0x54:
            value &= constant
        elif kind == 0x06:
            return int(constant)
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}
            at += yes if holds[kind] else no


@pytest.mark.parametrize("where", [X86_64, AARCH64], ids=["x86_64", "aarch64"])
def test_filter_of_either_architecture(where: Machine) -> None:
    """The numbers mean different calls on the other architecture, so both are tested here."""
    code = seccomp.build(where)
    special = (where.mmap, where.mprotect, where.futex)
    allowed = {n for n in range(1000) if decide(code, where.audit, n) == ALLOW}
    assert allowed == {*where.allowed, *special}
    assert all(decide(code, where.audit, n) == REFUSE for n in range(1000) if n not in allowed)
    assert decide(code, where.audit, 0x40000001) == KILL
    assert decide(code, 0x40000003, where.allowed[0]) == KILL  # the 32-bit table
    for number in special[:2]:
        assert decide(code, where.audit, number, 0, 4096, 3) == ALLOW
        assert decide(code, where.audit, number, 0, 4096, 7) == REFUSE
    for operation, answer in {
        0: ALLOW,
        129: ALLOW,
        9 | 128 | 256: ALLOW,
        6: REFUSE,
        134: REFUSE,
    }.items():
        assert decide(code, where.audit, where.futex, 0, operation) == answer


def test_forbidden_calls_have_the_right_numbers() -> None:
    """From asm/unistd_64.h and asm-generic/unistd.h, written independently of the list."""
    refused = {
        X86_64: {
            "open": 2,
            "stat": 4,
            "poll": 7,
            "ioctl": 16,
            "socket": 41,
            "clone": 56,
            "fork": 57,
        }
        | {"execve": 59, "kill": 62, "ptrace": 101, "prctl": 157, "openat": 257, "newfstatat": 262},
        AARCH64: {"ioctl": 29, "openat": 56, "newfstatat": 79, "kill": 129, "tgkill": 131}
        | {"prctl": 167, "ptrace": 117, "socket": 198, "clone": 220, "execve": 221},
    }
    for where, calls in refused.items():
        code = seccomp.build(where)
        for name, number in calls.items():
            assert decide(code, where.audit, number) == REFUSE, name
