"""Worker processes: what they grade, how they fail, and how they end."""

import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_guard.guard.grader_pool import GraderError, GraderPool, cores
from grpo_guard.guard.graders import GraderFailures

ROOT = Path(__file__).parents[2]
CATASTROPHE = ("(a+)+$", "a" * 40 + "b")


@pytest.fixture(scope="module")
def pool():
    return GraderPool(2)


def graded(gradings, seconds, limit, callers, size):
    """Make that many calls, each of which sleeps, from as many threads."""
    pool = GraderPool(size)

    def grade(i):
        time.sleep(seconds)
        return i

    with ThreadPoolExecutor(callers) as threads:
        asked = [threads.submit(pool.run, grade, (i,), {}, limit) for i in range(gradings)]
        return [answer.result() for answer in asked]


def test_waiting_for_a_worker_does_not_count_against_the_limit():
    """80 gradings of 50 ms over 2 workers take two seconds, and the limit is one."""
    assert graded(80, 0.05, 1.0, 64, 2) == list(range(80))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_thousand_gradings_within_a_second_each():
    """The figure of docs/failures.md: about 260 seconds, of which the workers sleep 250."""
    assert graded(10_000, 0.05, 1.0, 64, 2) == list(range(10_000))


def test_hanging_grader_is_killed_without_affecting_others(pool):
    def grade(i):
        if i == 3:
            re.match(*CATASTROPHE)  # never releases the interpreter's lock
        return i

    def outcome(i):
        try:
            return pool.run(grade, (i,), {}, 1.0)
        except TimeoutError:
            return "late"

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(outcome, range(8))) == [0, 1, 2, "late", 4, 5, 6, 7]


def test_workers_are_limited_and_reused(pool):
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(pool.run, os.getpid, (), {}, 30.0) for _ in range(50)]
        assert len({answer.result() for answer in asked}) <= 2
    one_after_the_other = {pool.run(os.getpid, (), {}, 30.0) for _ in range(10)}
    assert len(one_after_the_other) == 1


def test_worker_keeps_the_state_of_a_grader():
    pool = GraderPool(1)

    class Built:
        def __init__(self):
            self.calls = 0

        def __call__(self):
            self.calls += 1
            return self.calls

    reward = Built()
    assert [pool.run(reward, (), {}, 30.0) for _ in range(3)] == [1, 2, 3]
    assert reward.calls == 0
    reward.calls = 10  # the worker sees what changes here
    assert pool.run(reward, (), {}, 30.0) == 11


def test_more_graders_than_a_worker_keeps_loaded():
    pool = GraderPool(1)
    calls = [lambda i=i: i for i in range(20)]
    for order in (calls, calls[::-1], calls):
        assert [pool.run(call, (), {}, 30.0) for call in order] == [call() for call in order]


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_grader_exception_is_raised_with_its_traceback(pool):
    def fails():
        raise LookupError("no such row")

    def odd():
        raise Odd(1, 2)

    with pytest.raises(LookupError, match="no such row") as raised:
        pool.run(fails, (), {}, 30.0)
    assert "in fails" in raised.value.__notes__[0]
    with pytest.raises(GraderError, match="Odd: 1 and 2"):  # it cannot be unpickled
        pool.run(odd, (), {}, 30.0)


def test_unpicklable_argument_is_named(pool):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="argument 'sandbox' cannot be sent"):
        pool.run(lambda **given: 1, (), {"answer": 1, "sandbox": lock}, 30.0)
    with pytest.raises(TypeError, match="the answer cannot be sent"):
        pool.run(threading.Lock, (), {}, 30.0)


def test_function_of_a_file_outside_the_import_path(pool, tmp_path, monkeypatch):
    """verl loads reward functions this way: under a `sys.modules` name that nothing can import."""
    (tmp_path / "rewards.py").write_text("SCALE = 3\ndef reward(x):\n    return SCALE * x\n")
    spec = importlib.util.spec_from_file_location("custom_module_1f", tmp_path / "rewards.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "custom_module_1f", module)
    spec.loader.exec_module(module)
    assert pool.run(functools.partial(module.reward, 2), (), {}, 30.0) == 6


def test_unimportable_module_is_a_clear_error(pool, tmp_path, monkeypatch):
    (tmp_path / "soon_broken.py").write_text("def reward():\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import soon_broken

    (tmp_path / "soon_broken.py").write_text("import there_is_none_of_this_name\n")
    with pytest.raises(GraderError, match="cannot load the call: ModuleNotFoundError"):
        pool.run(soon_broken.reward, (), {}, 30.0)


def test_worker_that_died_while_idle_is_replaced():
    pool = GraderPool(1)
    os.kill(pool.run(os.getpid, (), {}, 30.0), signal.SIGKILL)
    time.sleep(0.2)
    assert pool.run(lambda: 1.0, (), {}, 30.0) == 1.0


def test_processes_started_by_a_grader_end_with_it(tmp_path):
    def starts():
        child = subprocess.Popen(["sleep", "300"])
        (tmp_path / "child").write_text(str(child.pid))
        time.sleep(300)

    with pytest.raises(TimeoutError):
        GraderPool(1).run(starts, (), {}, 1.0)
    assert ended(int((tmp_path / "child").read_text()))


def test_forked_child_has_its_own_workers():
    pool = GraderPool(1)
    ours = pool.run(os.getpid, (), {}, 30.0)
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(pool.run(os.getpid, (), {}, 30.0) == ours))
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.run(os.getpid, (), {}, 30.0) == ours


def test_ranks_on_a_machine_share_its_cores(monkeypatch):
    alone = cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(10 * alone))
    assert cores() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "none")
    assert cores() == alone


def test_training_script_is_not_run_again(tmp_path):
    """The script needs neither a `__main__` guard nor a module of its own."""
    script = tmp_path / "train.py"
    script.write_text(
        "from grpo_guard import presets\n"
        "print('started', flush=True)\n"
        "SCALE = 2.0\n"
        "failures = presets.failures_only(timeout=60)\n"
        "@failures\n"
        "def reward(prompts, completions, **kwargs):\n"
        "    return [helper(c) for c in completions]\n"
        "def helper(completion):\n"
        "    return SCALE * len(completion)\n"
        "print(reward(prompts=['p', 'p'], completions=['a', 'bb'], completion_ids=[[1], [2]]))\n"
    )
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, env=environment()
    )
    assert (ran.stdout, ran.returncode) == ("started\n[2.0, 4.0]\n", 0), ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stuck worker ends when it returns")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_hanging_worker_ends_with_its_parent(tmp_path, end):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, re, signal, threading, time\n"
        "from grpo_guard.guard.grader_pool import GraderPool\n"
        "def hangs(path):\n"
        "    open(path, 'w').write(str(os.getpid()))\n"
        f"    re.match(*{CATASTROPHE!r})\n"
        f"path = {str(tmp_path / 'worker')!r}\n"
        "run = lambda: GraderPool(1).run(hangs, (path,), {}, 300.0)\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "while not (os.path.exists(path) and open(path).read()):\n"
        "    time.sleep(0.05)\n"
        f"{'' if end == 'exit' else 'os.kill(os.getpid(), signal.SIGKILL)'}\n"
    )
    subprocess.run([sys.executable, script], timeout=300, env=environment())
    assert ended(int((tmp_path / "worker").read_text()))


def test_deleted_guard_leaves_no_worker():
    failures = GraderFailures(timeout=30)
    worker = failures.ask("f", os.getpid)
    del failures
    assert ended(worker)


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


def ended(process):
    """Whether a process ends within a few seconds; a zombie counts as ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if ") Z" in Path(f"/proc/{process}/stat").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
