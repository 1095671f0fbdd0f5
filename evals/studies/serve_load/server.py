"""A real server on this machine, in a separate process, and its cost."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GUARD = "policy: {on_abstain: zero}\nverifier: {type: screens}\n"
SECONDS = 130.0
"""Time limit for any wait here."""


@dataclass(frozen=True, slots=True)
class Server:
    """A listening server: its port and its process."""

    port: int
    process: subprocess.Popen[str]

    @property
    def pids(self) -> list[int]:
        """Its process id and its workers'."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def cpu(self) -> float:
        """Seconds of all its processes so far."""
        return sum(map(_cpu, self.pids))

    def resident(self) -> float:
        """MB of all its processes."""
        return sum(map(_resident, self.pids))


@contextlib.contextmanager
def serving(*options: str, guard: str = GUARD) -> Iterator[Server]:
    """Run ``grpo-guard serve`` with a guard file; ``FOLDER`` in it becomes a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "guard.yaml"
        config.write_text(guard.replace("FOLDER", folder))
        words = [option.replace("FOLDER", folder) for option in options]
        command = ["-m", "grpo_guard", "serve", "-c", str(config), "--port", "0", *words]
        with listening([sys.executable, *command]) as server:
            yield server


@contextlib.contextmanager
def listening(command: Sequence[str]) -> Iterator[Server]:
    """Run a server that prints on standard error where it listens, as uvicorn does."""
    process = subprocess.Popen(
        list(command), stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    assert process.stderr is not None
    server: Server | None = None
    try:
        found = None
        started = False
        while not (found and started):
            line = process.stderr.readline()
            if not line:
                raise RuntimeError("the server ended")
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line) or found
            started = started or "startup complete" in line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        server = Server(int(found[1]), process)
        yield server
    finally:
        for pid in server.pids if server and process.poll() is None else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, float]:
    """Status and seconds of one request; 0 = no answer."""
    began = time.monotonic()
    web = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        web.request(method, path, body)
        answer = web.getresponse()
        answer.read()
        return answer.status, time.monotonic() - began
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - began
    finally:
        web.close()


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1000 if found else 0.0
    return 0.0
