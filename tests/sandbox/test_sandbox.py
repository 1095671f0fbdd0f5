"""The sandbox for benign programs, its limits, and servers that come and go."""

import gc
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.evals.sandbox.inside.kernel import machine
from grpo_guard.evals.sandbox.result import Limits
from grpo_guard.evals.sandbox.sandbox import Sandbox, SandboxUnavailableError
from tests.sandbox.sandbox_outside import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="contained on Linux only")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_seconds=1)) as made:
        yield made


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("print(1 + 1)", "2\n"),
        ("", ""),
        ("print('é\\u4e2d\\ud800')", "é中\\ud800\n"),
        ("import math\nprint(math.comb(52, 5))", "2598960\n"),
        ("from fractions import Fraction as F\nprint(F(1, 3) + F(1, 6))", "1/2\n"),
        ("from decimal import Decimal\nprint(Decimal('0.1') * 3)", "0.3\n"),
        ("import statistics\nprint(statistics.mean([1, 2, 6]))", "3\n"),
        ("import datetime\nprint(datetime.datetime.strptime('2024', '%Y').year)", "2024\n"),
        ("import itertools\nprint(len(list(itertools.permutations(range(5)))))", "120\n"),
        ("print('{:,.2f}'.format(1234.5))", "1,234.50\n"),
        ("def main():\n    print(7)\nif __name__ == '__main__':\n    main()", "7\n"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1))",
            "A(x=1)\n",
        ),
        ("x: list[int] = []\nprint(__name__, __annotations__)", "__main__ {'x': list[int]}\n"),
        ("import sys\nprint(sys.argv, sys.stdin.read() == '')", "['program.py'] True\n"),
        ("raise SystemExit", ""),
        ("exit_code = 0\nimport sys\nsys.exit(exit_code)", ""),
    ],
)
def test_programs_that_compute(source: str, output: str, sandbox: Sandbox) -> None:
    run = sandbox.run(source)
    assert (run.status, run.stdout) == ("ok", output)
    assert run.seconds > 0


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("print(3)\n1 / 0", "3\n"),
        ("print(3)\nraise SystemExit('no')", "3\n"),
        ("print(", ""),
        ("\x00", ""),
        ("\ud800", ""),
        ("import a_module_that_is_not_there", ""),
        ("input()", ""),
        ("x" * 10_000_000, ""),
    ],
)
def test_failing_programs(source: str, output: str, sandbox: Sandbox) -> None:
    run = sandbox.run(source)
    assert (run.status, run.stdout) == ("error", output)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gets_a_result(sandbox: Sandbox, source: str) -> None:
    assert sandbox.run(source).status in ("ok", "error", "memory", "timeout", "killed")


def test_equal_programs_print_equal_lines() -> None:
    source = "import random\nprint(random.random(), hash('x'), {c for c in 'abcdefgh'})"
    printed = set()
    for _ in range(2):
        with Sandbox() as sandbox:
            printed |= {sandbox.run(source).stdout for _ in range(3)}
    assert len(printed) == 1


def test_programs_leave_nothing_behind(sandbox: Sandbox) -> None:
    sandbox.run("import math, builtins\nmath.pi = 3\nbuiltins.print = None\nmath.left = 1")
    run = sandbox.run("import math\nprint(math.pi > 3, hasattr(math, 'left'))")
    assert run.stdout == "True False\n"


def test_modules_can_be_made_resolvable() -> None:
    modules = {"calc": "def addition(a, b):\n    return a + b\n", "math": "pi = 3"}
    with Sandbox(extra_modules=modules) as sandbox:
        assert sandbox.run("from calc import addition\nprint(addition(2, 3))").stdout == "5\n"
        assert sandbox.run("import calc\nprint(calc.addition(2, 3))").stdout == "5\n"
        assert sandbox.run("import math\nprint(math.pi)").stdout == "3\n"
        assert sandbox.run("from calc import power").status == "error"


def test_module_has_the_same_restrictions_as_its_program() -> None:
    modules = {"calc": "open('/etc/passwd')", "loop": "while True: pass", "bad": "1 +"}
    with Sandbox(Limits(cpu_seconds=1), extra_modules=modules) as sandbox:
        assert sandbox.run("import calc").status == "error"
        assert sandbox.run("import loop").status == "timeout"
        assert sandbox.run("import bad").status == "error"


def test_packages_can_be_preloaded() -> None:
    source = "import numpy as np\nprint(int(np.linalg.solve([[2.0, 0], [0, 4]], [2, 8]).sum()))"
    with Sandbox(preload=["numpy"]) as sandbox:
        assert sandbox.run(source).stdout == "3\n"
    with pytest.raises(SandboxUnavailableError, match="no_such_package"):
        Sandbox(preload=["no_such_package"]).require()


def test_output_is_kept_up_to_the_limit() -> None:
    with Sandbox(Limits(output_bytes=100)) as sandbox:
        assert sandbox.run("print('x' * 99)").status == "ok"
        run = sandbox.run("print('x' * 100)")
        assert (run.status, run.stdout) == ("output_limit", "x" * 100)
        assert sandbox.run("print('é' * 50, end='')").stdout == "é" * 50


def test_memory_up_to_the_limit_may_be_used() -> None:
    with Sandbox(Limits(memory_bytes=64 << 20)) as sandbox:
        assert sandbox.run("x = bytearray(32 << 20)\nprint(1)").status == "ok"
        assert sandbox.run("x = bytearray(70 << 20)\nprint(1)").status == "memory"


def test_results_come_in_order_from_several_servers() -> None:
    with Sandbox(workers=3) as sandbox, ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(sandbox.run, (f"print({number})" for number in range(40))))
        assert [run.stdout for run in runs] == [f"{number}\n" for number in range(40)]


def test_threads_may_share_one_sandbox(sandbox: Sandbox) -> None:
    wrong = list[int]()

    def work(number: int) -> None:
        for _ in range(10):
            if sandbox.run(f"print({number})").stdout != f"{number}\n":
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_server_outlives_the_thread_that_started_it() -> None:
    with Sandbox(layers=["seccomp"]) as sandbox:
        sandbox.close()
        starter = threading.Thread(target=sandbox.run, args=("1",))
        starter.start()
        starter.join()
        (server,) = sandbox._idle
        assert sandbox.run("print(1)").stdout == "1\n"
        assert sandbox._idle == [server]


def test_dead_server_is_replaced() -> None:
    with Sandbox() as sandbox:
        (server,) = sandbox._idle
        server._process.kill()
        server._process.wait()
        assert sandbox.run("print(1)").stdout == "1\n"


def test_server_that_dies_during_a_run_fails_that_run_only() -> None:
    with Sandbox() as sandbox:
        (server,) = sandbox._idle
        threading.Timer(0.5, server._process.kill).start()
        run = sandbox.run("print(1, flush=True)\nimport time\ntime.sleep(5)")
        assert run.status == "killed"
        assert sandbox.run("print(2)").stdout == "2\n"


def test_forked_process_does_not_share_its_server(sandbox: Sandbox) -> None:
    sandbox.require()
    pid = os.fork()
    if pid == 0:
        good = all(sandbox.run(f"print({n})").stdout == f"{n}\n" for n in range(20))
        os._exit(0 if good else 1)
    here = [sandbox.run(f"print({n})").stdout for n in range(100, 120)]
    assert here == [f"{n}\n" for n in range(100, 120)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_collected_sandbox_ends_its_servers() -> None:
    forgotten = Sandbox()
    forgotten.require()
    (server,) = forgotten._idle
    del forgotten
    gc.collect()
    assert server._process.poll() is not None


def test_runs_leave_no_descriptors_open(sandbox: Sandbox) -> None:
    sandbox.run("1")
    before = sorted(os.listdir("/proc/self/fd"))
    for source in ["print(1)", "1 / 0", "print('x' * 10**6)", "import os; os.close(1)"] * 3:
        sandbox.run(source)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_every_other_system_call_is_refused(sandbox: Sandbox) -> None:
    """By number, so that system calls unknown to us are included."""
    here = machine()
    listed = [*here.allowed, here.mmap, here.mprotect, here.futex]
    if platform.machine() == "x86_64":
        # uretprobe and uprobe pass every filter on recent kernels (kernel/seccomp.c). They serve
        # breakpoints that the kernel set, and kill any process that calls them from elsewhere.
        listed += [335, 336]
    source = f"""
import ctypes
call = ctypes.CDLL(None, use_errno=True).syscall
for number in range(1024):
    if number not in {listed!r}:
        ctypes.set_errno(0)
        if call(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
            print(number)
"""
    run = sandbox.run(source)
    assert (run.status, run.stdout) == ("ok", "")


@pytest.mark.slow
@pytest.mark.parametrize("layers", [("seccomp", "landlock", "namespaces"), ("seccomp",), ()])
def test_all_processes_end_with_a_killed_parent(layers: tuple[str, ...]) -> None:
    wall = 1000.0 + time.monotonic_ns() % 1_000_003 / 1_000_003
    source = f"""
from grpo_guard.evals.sandbox.result import Limits
from grpo_guard.evals.sandbox.sandbox import Sandbox
sandbox = Sandbox(Limits(wall_seconds={wall!r}), allow_weak=True, layers={layers!r})
sandbox.require()
print('ready', flush=True)
sandbox.run('import time; time.sleep(1000)')
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        sign = f'"wall_seconds": {wall!r}'
        assert processes(sign)
        time.sleep(0.3)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while processes(sign) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes(sign) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_modules": {"a.b": ""}}, "identifiers"),
        ({"layers": ["magic"]}, "layers: expected some of seccomp"),
        ({"workers": 0}, "workers"),
    ],
)
def test_arguments_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sandbox(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"cpu_seconds": 0}, {"cpu_seconds": 1.5}, {"wall_seconds": -1}, {"output_bytes": 0}]
)
def test_limits_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


def test_interpreter_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxUnavailableError, match="does not start"):
        Sandbox().run("print(1)")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of prctl below is x86_64's")
def test_kernel_without_filters_is_refused_by_default() -> None:
    source = """
import struct
from grpo_guard.evals.sandbox.inside import kernel, seccomp
from grpo_guard.evals.sandbox.sandbox import Sandbox, SandboxUnavailableError
code = [(32, 0, 0, 0), (21, 0, 3, 157), (32, 0, 0, 16), (21, 0, 1, 22), (6, 0, 0, 0x50016)]
code.append((6, 0, 0, 0x7fff0000))  # prctl(PR_SET_SECCOMP) fails, all else is as ever
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(b"".join(struct.pack("HBBI", *step) for step in code))
try:
    Sandbox().run("print(1)")
except SandboxUnavailableError as error:
    print(error)
print(Sandbox(allow_weak=True).run("print(1 + 1)").stdout)
"""
    command = [sys.executable, "-c", source]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "programs could reach" in told
    assert "seccomp: unavailable: the kernel refuses the filter" in told
    assert told.endswith("\n2\n\n")
