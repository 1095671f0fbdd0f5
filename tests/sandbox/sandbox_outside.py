"""The traces an escape would leave, searched for from outside the sandbox."""

import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PLACES = ("/tmp", "/dev/shm", "/dev/mqueue", "/var/tmp", "/run", "/", ".", "~")
SECRET_START = "grpo-secret-"


class Outside:
    """Baits for one attempt, and what happened to them."""

    def __init__(self, folder: Path) -> None:
        self.marker = f"marker-{uuid.uuid4().hex}"
        # Assembled here, so that no program contains all of it.
        self.secret = SECRET_START + uuid.uuid4().hex
        self.folder = folder
        self.victim = folder / "victim.py"
        self.victim.write_text(f"text = '{self.secret}'\n")
        folder.chmod(0o777)
        self.victim.chmod(0o666)
        self._victim = self._state()
        self.signals: list[int] = []
        self.received: list[bytes] = []

    def _state(self) -> tuple[object, ...]:
        folder, found = self.folder.stat(), self.victim.stat()
        return (
            self.victim.read_bytes(),
            *((s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns, s.st_nlink) for s in (folder, found)),
            *(os.listxattr(path) for path in (self.folder, self.victim)),
            sorted(os.listdir(self.folder)),
        )

    def names(self) -> dict[str, object]:
        """Names defined for the program."""
        return {
            "MARKER": self.marker,
            "FOLDER": str(self.folder),
            "VICTIM": str(self.victim),
            "PARENT": os.getpid(),
            "TCP": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "UNIX": str(self.unix.getsockname()),
            "SECRET_START": SECRET_START[:8],
        }

    @contextmanager
    def watched(self) -> Iterator["Outside"]:
        """Listen on the three sockets and for a signal, with the secret in the environment."""
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(f"/tmp/{uuid.uuid4().hex[:12]}.sock")
        os.chmod(self.unix.getsockname(), 0o777)
        self.unix.listen()
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + self.marker)
        self.abstract.listen()
        old = signal.signal(signal.SIGUSR1, lambda number, frame: self.signals.append(number))
        os.environ["GRPO_GUARD_SECRET"] = self.secret
        self._state_before = self._state()
        self._threads_before = threading.active_count()
        try:
            yield self
        finally:
            del os.environ["GRPO_GUARD_SECRET"]
            signal.signal(signal.SIGUSR1, old)
            path = self.unix.getsockname()
            for made in (self.tcp, self.udp, self.unix, self.abstract):
                made.close()
            os.unlink(path)

    def traces(self, output: str) -> list[str]:
        """List everything that should not be there."""
        found = list[str]()
        if "ESCAPED" in output:
            found.append("says so: " + output[:2000])
        if self.secret in output:
            found.append("the secret was printed")
        for place in PLACES:
            with suppress(FileNotFoundError, PermissionError):
                names = os.listdir(os.path.expanduser(place))
                found += [f"{place}/{name}" for name in names if self.marker in name]
        try:
            if self._state() != self._state_before:
                found.append("the file or the folder was changed")
        except FileNotFoundError:
            found.append("the file is gone")
        for name in ("tcp", "udp", "unix", "abstract"):
            made: socket.socket = getattr(self, name)
            made.settimeout(0)
            with suppress(BlockingIOError):
                made.recv(1) if name == "udp" else made.accept()
                found.append(f"{name} was reached")
        found += [f"signal {number}" for number in self.signals]
        if threading.active_count() > self._threads_before + 4:
            found.append("threads")
        return found


def processes(sign: str) -> list[int]:
    """Processes with ``sign`` in their command line: a fork inherits its server's."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if sign.encode() in Path(f"/proc/{name}/cmdline").read_bytes() and state != "Z":
                found.append(int(name))
    return sorted(found)
