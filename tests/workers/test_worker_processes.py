"""How worker processes begin and end: in scripts, forks and children, and with their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_guard import Completion, Guard
from tests.helpers.subprocesses import ROOT, environment
from tests.workers.readers import Obeying, meeting, pids

BEGINS = """
import os, tempfile
from grpo_guard import Completion, Guard
from tests.workers.readers import Obeying, meeting, pids
the_guard = Guard(Obeying(), workers=2)
with tempfile.TemporaryDirectory() as folder:
    found = the_guard.verify(meeting(folder))
assert os.getpid() not in pids(found) and not any(v.abstained for v in found)
print(*pids(found), flush=True)
"""


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end_soon(numbers):
    for _ in range(600):
        if not any(map(running, numbers)):
            return True
        time.sleep(0.05)
    return False


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=300, check=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["script", pytest.param("-c", marks=pytest.mark.slow), "stdin"])
def test_a_script_needs_no_main_guard_and_ends_with_its_workers(how, tmp_path):
    if how == "script":
        (tmp_path / "train.py").write_text(BEGINS)
        done = python(str(tmp_path / "train.py"))
    else:
        done = python("-c", BEGINS) if how == "-c" else python("-", input=BEGINS)
    assert (done.returncode, done.stderr) == (0, "")
    numbers = [int(pid) for pid in done.stdout.split()]
    assert len(numbers) == 2
    assert end_soon(numbers)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they look once a second")
@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT]
)
def test_workers_end_with_their_parent_even_in_mid_text(sent):
    # Ctrl-C is ignored by what a shell starts in the background.
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"{BEGINS}\nthe_guard.verify([Completion('q', 'hang') for i in range(2)])\n"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as parent:  # fmt: skip
        numbers = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(map(running, numbers))
        parent.send_signal(sent)
        parent.wait(60)
    assert end_soon(numbers)


def test_a_verifier_of_the_script_itself(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\n"
        "from grpo_guard import Completion, Guard\n"
        "from grpo_guard.core.verdict import Finding, accept\n"
        "from grpo_guard.core.verifier import CompletionVerifier\n"
        "print('once', flush=True)\n"
        "class Own(CompletionVerifier):\n"
        '    scope, in_workers = "completion", True\n'
        "    def verify(self, batch):\n"
        "        return [accept('own', findings=(Finding(str(os.getpid()), ''),)) for _ in batch]\n"
        "(found,) = Guard(Own(), workers=1).verify([Completion('q', 'text')])\n"
        "assert found.findings[0].kind != str(os.getpid())\n"
    )
    done = python(str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")


def _verified(the_guard, numbers):
    found = the_guard.verify([Completion("q", f"text {i}") for i in range(16)])
    assert not any(v.abstained for v in found)
    assert os.getpid() not in pids(found)
    numbers.put(sorted(pids(found)))
    the_guard.workers.close()


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_daemonic_children_of_multiprocessing_start_their_own(way, tmp_path):
    """As workers of a DataLoader, which are daemons; a fork also copies the parent's pool."""
    the_guard = Guard(Obeying(), workers=2)
    own = pids(the_guard.verify(meeting(tmp_path)))
    context = multiprocessing.get_context(way)
    numbers = context.Queue()
    sent = the_guard if way == "fork" else Guard(Obeying(), workers=1)
    child = context.Process(target=_verified, args=(sent, numbers), daemon=True)
    child.start()
    theirs = numbers.get(timeout=120)
    child.join(60)
    assert child.exitcode == 0
    assert own.isdisjoint(theirs)
    assert pids(the_guard.verify(meeting(tmp_path))) == own
    assert end_soon(theirs)
