"""The processes of `vllm_server`, with a fake vLLM: none may outlive its starter."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.vllm_server import start, stop

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads /proc to see what is running"
)

# A server whose engine process ignores SIGTERM, like one that hangs in a kernel.
SERVER = """
import os, signal, subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as f:
    f.write(f"{os.getpid()} {engine.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
# Starts the server from a thread that ends, and then does nothing.
PARENT = """
import os, sys, threading, time
from tests.helpers.vllm_server import start
log = os.open(os.devnull, os.O_WRONLY)
thread = threading.Thread(target=lambda: start(sys.argv[1:], env=os.environ, log=log))
thread.start()
thread.join()
time.sleep(600)
"""


def running(pid):
    """Whether the process is neither gone nor an unreaped zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def stand_in(tmp_path):
    """The server's command, and how its processes are recognised once they run."""
    file = tmp_path / "pids"

    def pids():
        assert wait_for(file.exists)
        return [int(pid) for pid in file.read_text().split()]

    yield [sys.executable, "-c", SERVER, str(file)], pids
    for pid in pids() if file.exists() else []:
        if running(pid):  # only if a test failed
            os.kill(pid, signal.SIGKILL)


def test_killed_parent_takes_server_and_engine_with_it(stand_in):
    command, pids = stand_in
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command])
    try:
        family = pids()
        time.sleep(1.5)  # the thread that started the server ended long ago
        assert all(map(running, family))
    finally:
        parent.kill()
        parent.wait()
    assert wait_for(lambda: not any(map(running, family)))


def test_stop_ends_both_processes(stand_in):
    command, pids = stand_in
    with open(os.devnull, "wb") as log:
        server = start(command, env=os.environ, log=log.fileno())
    family = pids()
    stop(server)
    # SIGTERM reached the server, not only its launcher, which reports it as a shell does.
    assert server.returncode == 128 + signal.SIGTERM
    assert wait_for(lambda: not any(map(running, family)))


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)]
)
def test_server_exit_code_is_passed_on(code, expected, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        server = start(
            [sys.executable, "-c", f"import os, sys; print('words', flush=True); {code}"],
            env=os.environ,
            log=log.fileno(),
        )
    assert server.wait(60) == expected
    assert (tmp_path / "log").read_text() == "words\n"
