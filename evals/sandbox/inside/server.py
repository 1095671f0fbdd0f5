"""The fork-server: loads what programs import, locks itself in, then forks a child per program.

The server never sees a program or its output, which go through descriptors that it only passes on.
A child is a copy of the server, and so cannot find other programs' data in its memory. Only the
server sees how a child ended; it tells the parent over a socket that no child holds.

On the socket, the server first sends one line of JSON, which `ServerProcess` reads. It then answers
each ``R``, which comes with two descriptors (the read end of the source and the write end of the
output), with a line of JSON. ``K`` kills the running program; end of file ends server and child.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from . import child, landlock, namespaces, probe, seccomp
from .config import EXIT_ERROR, Config
from .kernel import PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, UnavailableError, machine, prctl

# Modules that calculating programs import, plus modules that these in turn import on first use.
USUAL: Final = (
    *("__future__", "_strptime", "abc", "array", "bisect", "calendar", "cmath", "collections"),
    *("collections.abc", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum"),
    *("fractions", "functools", "heapq", "io", "itertools", "json", "locale", "math"),
    *("numbers", "operator", "pprint", "random", "re", "statistics", "string", "struct", "sys"),
    *("textwrap", "time", "traceback", "types", "typing", "unicodedata", "warnings"),
    *("encodings.ascii", "encodings.latin_1", "encodings.utf_8"),
)


def main() -> None:
    """Serve until the socket closes: ``server.py CONFIG SOCKET``."""
    config = Config(**json.loads(sys.argv[1]))
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    try:
        server = _Server(config, control)
    except Exception as error:  # reported to the parent, which knows how to handle it
        _send(control, {"error": f"{type(error).__name__}: {error}"})
        return
    server.serve()


def _send(control: socket.socket, message: object) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


class _Server:
    def __init__(self, config: Config, control: socket.socket) -> None:
        self._config = config
        self._control = control
        self._nothing = os.open(os.devnull, os.O_WRONLY)
        _preload(config)
        self._baseline = _address_space()
        layers, self._filter = self._lock_down(config)
        self._first = os.getpid() == 1
        self._wake_read, wake_write = os.pipe()
        for end in (self._wake_read, wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # Collected once and then frozen, so that children share these pages.
        gc.collect()
        gc.freeze()
        open_ways = self._probe()
        _send(control, {"layers": layers, "open": open_ways})

    def _lock_down(self, config: Config) -> tuple[dict[str, str], bytes | None]:
        """Enter each available layer; return the layers' states as text, and the child filter."""
        layers = dict[str, str]()

        def attempt(name: str, enter: Callable[[], str]) -> None:
            if name in config.layers:
                try:
                    layers[name] = enter()
                except UnavailableError as reason:
                    layers[name] = f"unavailable: {reason}"

        attempt("namespaces", namespaces.enter)
        if config.layers:
            layers["identity"] = namespaces.drop_privileges()
        if os.getpid() == 1:
            # Only in process 1: elsewhere the signal comes as soon as the parent's *thread* ends.
            namespaces.die_with_parent()
        for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_DUMPABLE, 0)):
            with suppress(UnavailableError):
                prctl(option, value)
        attempt("landlock", landlock.restrict)
        code: bytes | None = None

        def try_filter() -> str:
            nonlocal code
            built = seccomp.build(machine())

            def install() -> int:
                seccomp.install(built)
                return 0

            # In a child, because a filter is permanent and the server still has to fork.
            if self._code_of(install):
                raise UnavailableError("the kernel refuses the filter")
            code = built
            return f"{len(built) // 8} instructions"

        attempt("seccomp", try_filter)
        return layers, code

    def _probe(self) -> list[str]:
        """Return the names of the ways out that a locked child finds open."""

        def look() -> int:
            child.lock(self._config, self._baseline, self._filter)
            return probe.open_ways()

        code = self._code_of(look)
        if code < 0 or code >= 1 << len(probe.WAYS):
            raise RuntimeError(f"a locked child could not be made (exit code {code})")
        return [name for index, name in enumerate(probe.WAYS) if code & 1 << index]

    def _code_of(self, work: Callable[[], int]) -> int:
        """Run ``work`` in a child and return its exit code."""
        _, status = os.waitpid(self._fork(work), 0)
        return os.waitstatus_to_exitcode(status)

    def _fork(self, work: Callable[[], int]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 255
        try:
            code = work()
        finally:
            # Never return to the server's own code, no matter what happened.
            os._exit(code)

    def serve(self) -> None:
        while True:
            word, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
            if not word:
                return
            if word == b"R":
                self._run(*descriptors)

    def _run(self, source: int, output: int) -> None:
        def work() -> int:
            try:
                child.settle(source, output, self._nothing)
                return child.main(self._config, self._baseline, self._filter)
            except BaseException:
                return EXIT_ERROR

        pid = self._fork(work)
        os.close(source)
        os.close(output)
        timed_out = not self._wait(pid)
        _kill(pid)
        _, status, usage = os.wait4(pid, 0)
        self._sweep(pid)
        record = {
            "status": os.waitstatus_to_exitcode(status),
            "timed_out": timed_out,
            "cpu": usage.ru_utime + usage.ru_stime,
        }
        with suppress(BrokenPipeError):
            _send(self._control, record)

    def _wait(self, pid: int) -> bool:
        """Wait for the child to end; return False if it ran out of time."""
        deadline = time.monotonic() + self._config.wall_seconds
        # The child is not reaped yet, so its number cannot be reused.
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            control = self._control.fileno()
            ready, _, _ = select.select([control, self._wake_read], [], [], left)
            if self._wake_read in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            if control in ready and not self._still_wanted():
                return True
        return True

    def _still_wanted(self) -> bool:
        # End of file: the parent is gone. The child is killed, then `serve` sees the end as well.
        return self._control.recv(1) not in (b"K", b"")

    def _sweep(self, pid: int) -> None:
        """Kill any process the child left behind, though it should not have been able to."""
        if self._first:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0 if self._first else os.WNOHANG) != (0, 0):
                pass


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _preload(config: Config) -> None:
    """Import the allowed modules, then clear every place where others could be found."""
    for name in USUAL:
        importlib.import_module(name)
    sys.path += config.path
    for name in config.preload:
        importlib.import_module(name)
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.argv.clear()
    sys.orig_argv.clear()
    os.environ.clear()


def _address_space() -> int:
    """Return how many bytes of address space this process has mapped; 0 if unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
