"""Runs untrusted Python programs and returns nothing but their output.

The boundary is the kernel rather than the interpreter: nothing here relies on emptied builtins or
on scanning the source. `docs/sandbox.md` lists what contains what, and on which systems.
"""

import json
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, Self, TypeAlias, get_args

from grpo_guard.evals.sandbox.inside.config import EXIT_MEMORY, EXIT_OK, Config
from grpo_guard.evals.sandbox.result import Limits, Run, Status
from grpo_guard.evals.sandbox.server_process import Ended, ServerGoneError, ServerProcess

Layer: TypeAlias = Literal["seccomp", "landlock", "namespaces"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)


class SandboxUnavailableError(RuntimeError):
    """Raised if this system cannot contain a program, or no server starts; the text says why."""


class Sandbox:
    """Runs programs one by one in locked-down processes; safe to use from several threads.

    A server is started on the first run and kept; each program gets its own process, forked from
    that server. Close the sandbox, or use it in a ``with`` statement, to end the servers; they also
    end with this process, no matter how it ends.

    Args:
        limits: Limits on one program.
        extra_modules: Modules, by name, that programs may import in addition to the usual ones.
            Their source runs with the program, under the same limits, regardless of its author.
        preload: Installed packages that programs may import, such as ``numpy``. Trusted: they are
            imported before anything is locked. Anything they import later will not be found.
        workers: Maximum number of programs running at the same time.
        allow_weak: Run even if the kernel cannot contain a program, with only resource limits and
            a separate process, which stop accidents but not an attacker.
        layers: Which layers to try, so that tests can check each wall on its own.

    Raises:
        ValueError: a module's name is not an identifier, a layer is unknown, or ``workers`` < 1.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        extra_modules: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        workers: int = 1,
        allow_weak: bool = False,
        layers: Iterable[Layer] = LAYERS,
    ) -> None:
        self.limits = limits or Limits()
        self._modules = dict(extra_modules or {})
        self._layers = tuple(layers)
        for name in self._modules:
            if not name.isidentifier():
                raise ValueError(f"extra_modules: expected identifiers, got {name!r}")
        if unknown := set(self._layers) - set(LAYERS):
            raise ValueError(f"layers: expected some of {', '.join(LAYERS)}, got {unknown!r}")
        if workers < 1:
            raise ValueError(f"workers: expected at least 1, got {workers!r}")
        self._preload = list(preload)
        self._allow_weak = allow_weak
        self._workers = workers
        self._places = threading.BoundedSemaphore(workers)
        self._idle: list[ServerProcess] = []
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def __reduce__(self) -> tuple[partial["Sandbox"], tuple[()]]:
        """Pickle without the servers: a copy in another process starts its own servers."""
        again = partial(
            Sandbox, self.limits, extra_modules=self._modules, preload=self._preload,
            workers=self._workers, allow_weak=self._allow_weak, layers=self._layers,
        )  # fmt: skip
        return again, ()

    def __enter__(self) -> Self:
        """Check right away that programs can be contained; see `require`."""
        self.require()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def require(self) -> dict[str, str]:
        """Start a server and have a locked child try all ways out; return the state of each layer.

        Raises:
            SandboxUnavailableError: a way out is open and weak containment was not requested.
        """
        with self._server() as server:
            return dict(server.layers)

    def run(self, source: str) -> Run:
        """Run ``source``, which can be any text, as a program; failures are part of the result.

        Raises:
            SandboxUnavailableError: no server can be started. No program can cause this.
        """
        request = json.dumps({"source": source, "modules": self._modules}).encode()
        if len(request) > self.limits.source_bytes:
            return Run("error", "", 0.0)
        with self._server() as server:
            started = time.monotonic()
            try:
                ended = server.run(request, self.limits.output_bytes)
            except ServerGoneError:
                # If a program ever brings a server down, it gains nothing: the next run starts
                # another server, or raises if that is impossible.
                ended = Ended(-int(signal.SIGKILL), False, 0.0, b"")
            seconds = time.monotonic() - started
        output = ended.output[: self.limits.output_bytes].decode("utf-8", "replace")
        return Run(self._status(ended), output, seconds)

    def close(self) -> None:
        """End the servers; a later run starts new ones."""
        _close_all(self._idle)

    def _status(self, ended: Ended) -> Status:
        if len(ended.output) > self.limits.output_bytes:
            return "output_limit"
        if ended.timed_out or ended.code == -signal.SIGXCPU:
            return "timeout"
        # A program can ignore SIGXCPU; a second later, the kernel sends SIGKILL.
        if ended.code == -signal.SIGKILL and ended.cpu >= self.limits.cpu_seconds:
            return "timeout"
        if ended.code < 0:
            return "killed"
        known: dict[int, Status] = {EXIT_OK: "ok", EXIT_MEMORY: "memory"}
        return known.get(ended.code, "error")

    @contextmanager
    def _server(self) -> Iterator[ServerProcess]:
        """Provide a server for exclusive use."""
        with self._places:
            server = self._take()
            try:
                yield server
            except BaseException:
                server.close()  # interrupted before the answer, which the next run would read
                raise
            if server.usable:
                self._idle.append(server)
            else:
                server.close()

    def _take(self) -> ServerProcess:
        while self._idle:
            server = self._idle.pop()
            if server.usable:
                return server
            server.close()
        return self._start()

    def _start(self) -> ServerProcess:
        if os.name != "posix" or not sys.executable:
            raise SandboxUnavailableError("needs a POSIX system and a Python executable to start")
        limits = self.limits
        path = [entry for entry in sys.path if entry] if self._preload else []
        config = Config(
            layers=list(self._layers),
            preload=self._preload,
            path=path,
            cpu_seconds=int(limits.cpu_seconds),
            wall_seconds=limits.wall_seconds,
            memory_bytes=limits.memory_bytes,
            source_bytes=limits.source_bytes,
        )
        try:
            server = ServerProcess(config)
        except (OSError, ServerGoneError) as error:
            raise SandboxUnavailableError(f"the sandbox does not start: {error}") from None
        if server.open_ways and not self._allow_weak:
            server.close()
            state = "; ".join(f"{name}: {text}" for name, text in server.layers.items())
            raise SandboxUnavailableError(
                f"programs could reach {', '.join(server.open_ways)} on this system ({state}). "
                "Use Linux on x86_64 or aarch64; allow_weak=True runs them anyway"
            )
        return server


def _close_all(servers: list[ServerProcess]) -> None:
    while servers:
        servers.pop().close()
