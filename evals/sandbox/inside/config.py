"""The server's configuration, and the exit codes of its children."""

from dataclasses import dataclass
from typing import Final

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_MEMORY: Final = 3


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of the server, passed to it as a JSON argument.

    Args:
        layers: Which of ``seccomp``, ``landlock`` and ``namespaces`` to try.
        preload: Modules to import before locking down, in addition to the usual ones.
        path: Where to look for preloaded modules after the standard library.
        cpu_seconds: Maximum processor time per program, in whole seconds.
        wall_seconds: Wall-clock time after which a program is killed.
        memory_bytes: Maximum memory that a program can use beyond the interpreter's own.
        source_bytes: Maximum size of a request.
    """

    layers: list[str]
    preload: list[str]
    path: list[str]
    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int
    source_bytes: int
