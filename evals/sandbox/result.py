"""The limits of a sandboxed program, and its result."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["ok", "error", "timeout", "memory", "output_limit", "killed"]
"""``ok``: ended with exit code 0. ``error``: an exception or any other exit code. ``timeout``: out
of processor or wall-clock time. ``memory``: an uncaught MemoryError. ``output_limit``: printed too
much. ``killed``: ended by a signal, such as a crash of the interpreter."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of running one program.

    Args:
        status: How the program ended; see `Status`.
        stdout: Its standard output, cut at the limit; bytes that are not UTF-8 are replaced.
        seconds: Wall-clock time, not counting the wait for a free server.
    """

    status: Status
    stdout: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one program.

    Args:
        cpu_seconds: Maximum processor time; whole seconds, as the kernel counts them.
        wall_seconds: Wall-clock time after which even an idle program is killed; well above
            ``cpu_seconds``, so that a busy machine does not decide the result.
        memory_bytes: Maximum address space beyond what the interpreter has when it starts.
        output_bytes: Maximum size of standard output.
        source_bytes: Maximum size of the program plus the modules that go with it, as JSON.

    Raises:
        ValueError: a limit is not positive, or ``cpu_seconds`` is not whole.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 10.0
    memory_bytes: int = 256 << 20
    output_bytes: int = 64 << 10
    source_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        """Refuse limits that would not let any program run."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")
        if self.cpu_seconds != int(self.cpu_seconds):
            raise ValueError(f"cpu_seconds: expected whole seconds, got {self.cpu_seconds!r}")
