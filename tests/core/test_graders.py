"""A grader that fails says nothing, and too many failures stop the run."""

import asyncio
import pickle
import threading
import time

import pytest

from grpo_guard import AbstainError
from grpo_guard.graders import FAILED, GraderFailures, finite_or_none


def boom(*args, **kwargs):
    raise RuntimeError("boom")


async def aboom():
    raise RuntimeError("boom")


def test_what_is_returned_comes_through_and_a_failure_says_nothing():
    failures = GraderFailures()
    assert failures.ask("f", lambda x, y: [x, y], 1, y=2) == [1, 2]
    assert failures.ask("f", boom) is FAILED

    async def later(x):
        return x

    assert asyncio.run(failures.aask("f", later, 3)) == 3
    assert asyncio.run(failures.aask("f", aboom)) is FAILED


def test_what_takes_too_long_is_a_failure():
    failures = GraderFailures(timeout=0.05)
    release = threading.Event()
    assert failures.ask("f", release.wait, 30) is FAILED
    release.set()
    assert failures.ask("f", lambda: 1.0) == 1.0
    assert asyncio.run(failures.aask("f", asyncio.sleep, 30)) is FAILED


def test_without_a_timeout_the_function_stays_in_its_thread():
    """Graders of mathematics set signal alarms, which work in the main thread alone."""
    assert GraderFailures().ask("f", threading.current_thread) is threading.current_thread()
    assert GraderFailures(timeout=30).ask("f", threading.current_thread) is not (
        threading.current_thread()
    )


def test_a_timeout_of_the_functions_own_is_told_as_it_is(caplog):
    def own():
        raise TimeoutError("the sandbox did not answer")

    assert GraderFailures(timeout=30).ask("f", own) is FAILED
    assert "the sandbox did not answer" in caplog.text


def test_an_exit_in_what_a_grader_runs_ends_no_run():
    def runs():
        raise SystemExit(1)  # as `exec` of a completion's program may

    assert GraderFailures(timeout=30).ask("f", runs) is FAILED


def test_calls_that_hang_for_ever_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("grpo_guard.graders.MAX_HUNG_GRADERS", 2)
    failures = GraderFailures(timeout=0.02, max_rate=1.0)
    release, calls = threading.Event(), []

    def hang():
        calls.append(1)
        release.wait(30)

    assert [failures.ask("f", hang) for _ in range(5)] == [FAILED] * 5
    assert len(calls) == 2
    release.set()
    deadline = time.monotonic() + 10
    while failures.ask("f", lambda: 1.0) is FAILED:
        assert time.monotonic() < deadline


def test_too_many_failures_stop_the_run_and_name_the_cause():
    failures = GraderFailures(window=4, max_rate=0.5)
    for call in (boom, boom, lambda: 1.0):
        failures.ask("f", call)
    with pytest.raises(AbstainError, match="f: 3 of the last 4 calls failed") as raised:
        failures.ask("f", boom)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_few_failures_do_not():
    failures = GraderFailures(window=4, max_rate=0.5)
    for i in range(40):
        failures.ask("f", boom if i % 2 else lambda: 1.0)


def test_a_worker_begins_its_own_count():
    failures = GraderFailures(timeout=3.0, window=2, max_rate=0.5)
    failures.ask("f", boom)
    copy = pickle.loads(pickle.dumps(failures))
    assert (copy.timeout, copy.window, copy.max_rate) == (3.0, 2, 0.5)
    assert copy.ask("f", boom) is FAILED


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"timeout": float("nan")}, {"max_rate": 2}, {"window": 0}]
)
def test_what_is_out_of_range_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GraderFailures(**wrong)


def test_numbers_that_are_none():
    assert finite_or_none([1.0, None, float("nan"), float("inf")]) == [1.0, None, None, None]
