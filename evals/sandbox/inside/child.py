"""One program in one process: lock the process down, then run the program.

The process holds no secrets and cannot protect anything once the program runs, because the program
can reach every object in it. The program is contained by the kernel, which `lock` sets up before
the first byte of the program is compiled.
"""

import io
import json
import os
import random
import resource
import signal
import sys
import types
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader

from . import namespaces, seccomp
from .config import EXIT_ERROR, EXIT_MEMORY, EXIT_OK, Config

_DESCRIPTORS = 3


def settle(source: int, output: int, nothing: int) -> None:
    """Install the descriptors as 0, 1 and 2, close all others, and reset the server's handlers.

    This also closes the control socket, so that a program cannot talk to the parent.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in range(_DESCRIPTORS):  # the sources must not overlap the targets below
        if number in (source, output, nothing):
            raise AssertionError("the server holds 0, 1 and 2 itself")
    for number, given in enumerate((source, output, nothing)):
        os.dup2(given, number)
    os.closerange(_DESCRIPTORS, _highest_descriptor())


def _highest_descriptor() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if 0 < most < 65536 else 65536


def lock(config: Config, baseline: int, code: bytes | None) -> None:
    """Limit resources and install the system-call filter.

    Args:
        config: The limits.
        baseline: Address space in use before the program starts, in bytes.
        code: The filter; None if the kernel does not offer one.

    Raises:
        OSError, ValueError, UnavailableError: locking failed, so the program must not be run.
    """
    limits = {
        resource.RLIMIT_CPU: config.cpu_seconds,
        resource.RLIMIT_AS: baseline + config.memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_NOFILE: _DESCRIPTORS,
        # This limit is per user and could already be exceeded, which is fine: no fork succeeds
        # then.
        resource.RLIMIT_NPROC: 0,
    }
    for name, wanted in limits.items():
        if name == resource.RLIMIT_AS and sys.platform == "darwin":
            continue  # not supported there; the parent's caller has accepted weak containment
        # SIGKILL, which cannot be caught, comes a second after SIGXCPU.
        hard = wanted + (name == resource.RLIMIT_CPU)
        old = resource.getrlimit(name)[1]
        hard = hard if old == resource.RLIM_INFINITY else min(hard, old)
        resource.setrlimit(name, (min(wanted, hard), hard))
    namespaces.die_with_parent()
    if code is not None:
        seccomp.install(code)


def main(config: Config, baseline: int, code: bytes | None) -> int:
    """Read a request from descriptor 0, lock the process and run the program; return the exit code.

    A request is JSON: ``{"source": str, "modules": {name: source}}``.
    """
    request = json.loads(_read_all(config.source_bytes))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)),
        "utf-8",
        "backslashreplace",
        newline="\n",
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace"
    )
    lock(config, baseline, code)
    return _execute(request["source"], request["modules"])


def _read_all(most: int) -> bytes:
    parts = list[bytes]()
    while part := os.read(0, 65536):
        parts.append(part)
        most -= len(part)
        if most < 0:
            raise ValueError("the request is longer than agreed")
    return b"".join(parts)


class _Given:
    """Import finder for the modules sent with the request; their source runs in this process."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in self._sources else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        text = self._sources[module.__name__]
        exec(compile(text, f"<{module.__name__}>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def _execute(source: str, modules: Mapping[str, str]) -> int:
    for name in modules:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Given(modules))
    sys.argv = ["program.py"]
    # Identical programs must print identical lines, but the server seeds its own state randomly.
    random.seed(0)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        # Running a program is this process's purpose; `lock` makes that safe.
        exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        return _flushed(EXIT_OK)
    except SystemExit as ended:
        return _flushed(EXIT_ERROR if ended.code else EXIT_OK)
    except MemoryError:
        return _flushed(EXIT_MEMORY)
    except BaseException:
        return _flushed(EXIT_ERROR)


def _flushed(code: int) -> int:
    """Flush the program's buffered output; the program might have closed or replaced the stream."""
    try:
        sys.stdout.flush()
    except BaseException:
        return code or EXIT_ERROR
    return code
