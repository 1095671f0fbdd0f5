"""The parent's side of a fork-server: starts it, sends programs and reads their output."""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from grpo_guard.evals.sandbox.inside.config import Config

# Number of seconds for a server to start, and to report after a program's own time is up.
_START: Final = 60.0
_GRACE: Final = 20.0
_LONGEST_LINE: Final = 1 << 16
_CHUNK: Final = 1 << 16

# The interpreter takes nothing from its environment: no site-packages, user folder or current
# folder. Not -I, which would ignore PYTHONHASHSEED: identical programs must print identical lines.
_FLAGS: Final = ("-S", "-s", "-P", "-B")
_START_UP: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside import server; "
    "del sys.path[0]; server.main()"
)


class ServerGoneError(Exception):
    """Raised if the server ended or stopped answering; the text is its last message."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program's process ended, as reported by the server.

    Args:
        code: Exit code, or minus the number of the signal.
        timed_out: Killed because its wall-clock time was up.
        cpu: Processor time in seconds.
        output: The program's output, at most one byte beyond the limit.
    """

    code: int
    timed_out: bool
    cpu: float
    output: bytes


class ServerProcess:
    """One fork-server; runs one program at a time.

    Raises:
        ServerGoneError: the server could not be started.
    """

    def __init__(self, config: Config) -> None:
        self._wall = config.wall_seconds
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        self._control = ours
        with theirs:
            arguments = [str(Path(__file__).parent), json.dumps(asdict(config))]
            self._process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", _START_UP, *arguments, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            hello = self._line(time.monotonic() + _START)
            if "error" in hello:
                raise ServerGoneError(hello["error"])
        except ServerGoneError:
            self.close()
            raise
        self.layers: dict[str, str] = hello["layers"]
        self.open_ways: Sequence[str] = tuple(hello["open"])

    @property
    def usable(self) -> bool:
        """Whether the server still runs and was started by this process, not by its parent.

        Two processes sharing one socket would get each other's results.
        """
        return self._owner == os.getpid() and self._process.poll() is None

    def run(self, request: bytes, most_output: int) -> Ended:
        """Run the program in ``request`` (see `inside.child.main`).

        Raises:
            ServerGoneError: no answer came; in that case the server is closed.
        """
        try:
            with contextlib.ExitStack() as stack:
                source_out, source_in, output_out, output_in = (
                    stack.enter_context(end) for end in (*_pipe(), *_pipe())
                )
                numbers = [source_out.fileno(), output_in.fileno()]
                socket.send_fds(self._control, [b"R"], numbers)
                # Close them here: while any copy is open, the end of the output is never seen.
                source_out.close()
                output_in.close()
                exchange = _Exchange(request, source_in, output_out, most_output)
                report = self._follow(exchange)
                exchange.read_rest()
        except (OSError, ServerGoneError) as error:
            self.close()
            raise ServerGoneError(str(error)) from None
        return Ended(
            int(report["status"]),
            bool(report["timed_out"]),
            float(report["cpu"]),
            bytes(exchange.output),
        )

    def _follow(self, exchange: "_Exchange") -> dict[str, Any]:
        deadline = time.monotonic() + self._wall + _GRACE
        stopped = False
        with selectors.DefaultSelector() as ready:
            exchange.register(ready)
            ready.register(self._control, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(max(0.0, deadline - time.monotonic())):
                    if key.fileobj is self._control:
                        return self._line(deadline)
                    exchange.step(ready, key.fileobj)
                if exchange.over and not stopped:
                    stopped = True
                    self._control.sendall(b"K")
                if time.monotonic() > deadline:
                    raise ServerGoneError("no answer in time")

    def _line(self, deadline: float) -> dict[str, Any]:
        text = bytearray()
        while not text.endswith(b"\n"):
            self._control.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                part = self._control.recv(_CHUNK)
            except OSError as error:
                raise ServerGoneError(f"no answer: {error}") from None
            if not part or len(text) > _LONGEST_LINE:
                raise ServerGoneError("the server ended" if not part else "too long an answer")
            text += part
        found: dict[str, Any] = json.loads(text)
        return found

    def close(self) -> None:
        """End the server and anything it is running."""
        self._control.close()
        if self._owner != os.getpid():
            return
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Exchange:
    """Transfers the source to the program, and the program's output back."""

    def __init__(self, request: bytes, source: FileIO, output: FileIO, most: int) -> None:
        self.output = bytearray()
        self._request = memoryview(request)
        self._source, self._read, self._most = source, output, most
        for end in (source, output):
            os.set_blocking(end.fileno(), False)

    @property
    def over(self) -> bool:
        """Whether the program printed more than allowed."""
        return len(self.output) > self._most

    def register(self, ready: selectors.BaseSelector) -> None:
        ready.register(self._source, selectors.EVENT_WRITE)
        ready.register(self._read, selectors.EVENT_READ)

    def step(self, ready: selectors.BaseSelector, end: object) -> None:
        """Transfer as much as possible through ``end``, and unregister it when it is done."""
        if end is self._source and not self._send():
            ready.unregister(self._source)
            self._source.close()  # end of file, which the child waits for
        elif end is self._read and not self._receive():
            ready.unregister(self._read)

    def _send(self) -> bool:
        """Send part of the request; return whether there is more to send."""
        with contextlib.suppress(BrokenPipeError):
            self._request = self._request[self._source.write(self._request) or 0 :]
            return len(self._request) > 0
        return False

    def _receive(self) -> bool:
        """Receive part of the output; return whether there could be more."""
        part = self._read.read(min(_CHUNK, self._most + 1 - len(self.output)))
        if part is None:  # nothing yet
            return True
        self.output += part
        return bool(part) and not self.over

    def read_rest(self) -> None:
        """Read what is left in the pipe after the program has ended."""
        before = -1
        while not self.over and len(self.output) > before:
            before = len(self.output)
            self._receive()


def _pipe() -> tuple[FileIO, FileIO]:
    """Open a pipe; return its read end and its write end."""
    out, into = os.pipe()
    return FileIO(out, "r"), FileIO(into, "w")
