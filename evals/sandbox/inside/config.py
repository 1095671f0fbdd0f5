"""The server's configuration, and the exit codes of its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_MEMORY: Final = 3


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration, passed as JSON in the server's arguments.

    Args:
        layers: Which of ``seccomp``, ``landlock``, ``namespaces`` to try.
        preload: Modules to import before locking down, in addition to the usual ones.
        path: Where to look for them, after the standard library.
        cpu_seconds: Processor time per program, whole seconds.
        wall_seconds: Wall-clock time until a program is killed.
        memory_bytes: Memory a program may use beyond the interpreter's own.
        source_bytes: Size of the longest request accepted.
    """

    layers: list[str]
    preload: list[str]
    path: list[str]
    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int
    source_bytes: int
