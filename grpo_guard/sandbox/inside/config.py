"""What the server is told when it starts, and the exit codes that its children use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_MEMORY: Final = 3


@dataclass(frozen=True, slots=True)
class Config:
    """Sent as JSON in the server's argument.

    Args:
        layers: Which of ``seccomp``, ``landlock``, ``namespaces`` to try.
        preload: Modules to import before everything is closed, besides the usual ones.
        path: Where to look for them, after the standard library.
        cpu_seconds: Of processor time per program, whole seconds.
        wall_seconds: Until a program is killed.
        memory_bytes: That a program may have beyond what the interpreter takes itself.
        source_bytes: The longest request that is read.
    """

    layers: list[str]
    preload: list[str]
    path: list[str]
    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int
    source_bytes: int
