"""Attempts to escape from the sandbox: none leaves a trace, and the next program runs normally."""

import itertools
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_guard.evals.sandbox.result import Limits, Run
from grpo_guard.evals.sandbox.sandbox import LAYERS, Layer, Sandbox, SandboxUnavailableError
from tests.sandbox.sandbox_attempts import ATTEMPTS, EXHAUSTION, PRELUDE, TOOLS
from tests.sandbox.sandbox_outside import Outside, processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="contained on Linux only")

# All walls together, and the one required everywhere on its own.
WALLS: dict[str, tuple[Layer, ...]] = {"all": LAYERS, "seccomp": ("seccomp",)}


class Walled:
    """A sandbox whose processes are distinguishable by their command line."""

    def __init__(self, layers: tuple[Layer, ...], **options: bool) -> None:
        wall_seconds = 3 + random.SystemRandom().random()
        self.sign = json.dumps({"wall_seconds": wall_seconds})[1:-1]
        limits = Limits(cpu_seconds=1, wall_seconds=wall_seconds, memory_bytes=128 << 20)
        self.sandbox = Sandbox(limits, layers=layers, preload=TOOLS, **options)

    def attempt(
        self, source: str, outside: Outside, prelude: str = PRELUDE
    ) -> tuple[Run, list[str]]:
        self.sandbox.require()
        before = processes(self.sign)
        with outside.watched():
            told = "".join(f"{name} = {value!r}\n" for name, value in outside.names().items())
            run = self.sandbox.run(told + prelude + source)
            traces = outside.traces(run.stdout)
        extra = set(processes(self.sign)) - set(before)
        return run, traces + [f"process {pid}" for pid in extra]


@pytest.fixture(scope="module", params=WALLS)
def walled(request: pytest.FixtureRequest) -> Iterator[Walled]:
    made = Walled(WALLS[request.param])
    try:
        made.sandbox.require()
    except SandboxUnavailableError as reason:
        pytest.skip(str(reason))
    yield made
    made.sandbox.close()
    assert processes(made.sign) == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own folder, which only its user can reach: permissions are not under test."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_escape_attempts_leave_no_trace(name: str, walled: Walled, folder: Path) -> None:
    run, traces = walled.attempt(ATTEMPTS[name], Outside(folder))
    assert traces == []
    assert run.status in ("ok", "error", "killed"), run
    assert walled.sandbox.run("print(6 * 7)").stdout == "42\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHAUSTION)
def test_resources_are_not_exhausted(name: str, walled: Walled, folder: Path) -> None:
    source, expected = EXHAUSTION[name]
    run, traces = walled.attempt(source, Outside(folder), prelude="")
    assert traces == []
    assert run.status in expected, (run.status, run.stdout[:200])
    assert len(run.stdout) <= walled.sandbox.limits.output_bytes
    assert walled.sandbox.run("print(6 * 7)").stdout == "42\n"


CHANGED = "the file or the folder was changed"
CONTROLS = {
    "files-create": "marker-",
    "files-unlink": "the file is gone",
    "files-chmod": CHANGED,
    "files-symbolic_link": CHANGED,
    "secrets-read": "the secret was printed",
    "network-tcp": "tcp was reached",
    "network-udp": "udp was reached",
    "network-unix": "unix was reached",
    "network-names": "says so",
    "secrets-look": "says so",
    "processes-daemon": "process ",
    "processes-command": CHANGED,
    "processes-signal_parent": "signal ",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_without_walls_the_same_programs_leave_traces(name: str, folder: Path) -> None:
    """Otherwise the tests above would prove nothing."""
    if os.geteuid() != 0 and name in ("processes-daemon", "processes-command"):
        pytest.skip("only the process limit stops these, for users other than root")
    walled = Walled((), allow_weak=True)
    outside = Outside(folder)
    with walled.sandbox:
        _, traces = walled.attempt(ATTEMPTS[name], outside)
    for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/", ".", os.path.expanduser("~")):
        Path(place, outside.marker).unlink(missing_ok=True)
    assert any(CONTROLS[name] in trace for trace in traces), traces


@pytest.mark.skipif(os.geteuid() != 0, reason="the process limit stops it for other users")
def test_lingering_process_is_detected() -> None:
    walled = Walled((), allow_weak=True)
    with walled.sandbox:
        walled.sandbox.require()
        before = processes(walled.sign)
        walled.sandbox.run(
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(2)\n"
            "time.sleep(0.5)"
        )
        assert len(processes(walled.sign)) > len(before)


@pytest.mark.parametrize("layers", [(), ("landlock",), ("namespaces",), ("landlock", "namespaces")])
def test_insufficient_walls_are_refused(layers: tuple[Layer, ...]) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"programs could reach .*allow_weak"):
        Sandbox(layers=layers).run("print(1)")


@pytest.mark.slow
def test_programs_see_nothing_of_each_other() -> None:
    """The second of two programs finds neither the first's source nor its output in its memory."""
    word = f"word-{random.SystemRandom().random()}"
    search = f"""
import ctypes, gc
halves = {word[:9]!r}, {word[9:]!r}
for thing in gc.get_objects():
    for inner in (thing, *gc.get_referents(thing)):
        if isinstance(inner, (str, bytes)) and str(inner).find(halves[0] + halves[1]) >= 0:
            if len(str(inner)) < 60: print('ESCAPED')
"""
    with Sandbox() as sandbox:
        for first, second in itertools.pairwise([f"x = {word!r}\nprint(x)", search, search]):
            sandbox.run(first)
            assert "ESCAPED" not in sandbox.run(second).stdout
