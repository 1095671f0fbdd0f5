"""A program's limits and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["ok", "error", "timeout", "memory", "output_limit", "killed"]
"""``ok``: ended with exit code 0. ``error``: an exception or another exit code. ``timeout``: out of
processor or wall-clock time. ``memory``: an uncaught MemoryError. ``output_limit``: printed too
much. ``killed``: ended by a signal, such as a crash of the interpreter."""


@dataclass(frozen=True, slots=True)
class Run:
    """How one program ended.

    Args:
        status: See `Status`.
        stdout: Its output, at most the limit; bytes that are not UTF-8 are replaced.
        seconds: Wall-clock time, without waiting for a free server.
    """

    status: Status
    stdout: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program.

    Args:
        cpu_seconds: Processor time; whole seconds, as the kernel counts them.
        wall_seconds: Time until it is killed, however idle; well above ``cpu_seconds``, so that a
            busy machine does not decide the result.
        memory_bytes: Address space beyond what the interpreter has when it starts.
        output_bytes: Size of standard output.
        source_bytes: Size of the program and the modules that go with it, as JSON.

    Raises:
        ValueError: one of them is not positive.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 10.0
    memory_bytes: int = 256 << 20
    output_bytes: int = 64 << 10
    source_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        """Refuse limits that would allow nothing."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")
        if self.cpu_seconds != int(self.cpu_seconds):
            raise ValueError(f"cpu_seconds: expected whole seconds, got {self.cpu_seconds!r}")
