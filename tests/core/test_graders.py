"""A grader that fails gives no reward, and too many failures stop the run."""

import asyncio
import contextlib
import copy
import logging
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_guard import AbstainError
from grpo_guard.guard import grader_pool, graders
from grpo_guard.guard.graders import FAILED, Grader, GraderFailures, finite_or_none


@pytest.fixture(scope="module")
def limited():
    """Graders with a limit that no test here reaches; the workers are shared."""
    return GraderFailures(timeout=60, max_rate=1.0)


def boom(*args, **kwargs):
    raise RuntimeError("boom")


async def aboom():
    raise RuntimeError("boom")


def test_results_pass_through_and_failures_give_no_reward():
    failures = GraderFailures()
    assert failures.ask("f", lambda x, y: [x, y], 1, y=2) == [1, 2]
    assert failures.ask("f", boom) is FAILED

    async def later(x):
        return x

    assert asyncio.run(failures.aask("f", later, 3)) == 3
    assert asyncio.run(failures.aask("f", aboom)) is FAILED


def test_columns_may_have_any_name(limited):
    def reward(name, call):
        return [name, call]

    for failures in (GraderFailures(), limited):
        assert failures.ask("f", reward, name=1, call=2) == [1, 2]


def test_slow_grading_is_a_failure():
    failures = GraderFailures(timeout=0.3)
    assert failures.ask("f", lambda: time.sleep(30)) is FAILED
    assert failures.ask("f", lambda: 1.0) == 1.0
    assert asyncio.run(failures.aask("f", asyncio.sleep, 30)) is FAILED


def test_grader_without_a_limit_runs_in_the_calling_thread():
    assert GraderFailures().ask("f", threading.current_thread) is threading.current_thread()


def test_grader_with_a_limit_runs_on_the_main_thread_of_a_worker(limited):
    def where():
        return os.getpid(), threading.current_thread() is threading.main_thread()

    with ThreadPoolExecutor(1) as threads:
        process, main = threads.submit(limited.ask, "f", where).result()
    assert process != os.getpid()
    assert main


def test_alarms_work_and_do_not_leak_into_the_next_call(limited):
    def own_limit():
        def ring(number, frame):
            raise TimeoutError("rang")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(30)
        except TimeoutError as error:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return str(error)

    assert limited.ask("f", own_limit) == "rang"
    assert limited.ask("f", lambda: time.sleep(0.3)) is None


class Alarm(BaseException):
    """Like math-verify's TimeoutException, which is not an `Exception`."""


def test_base_exception_of_a_grader_is_a_failure(limited, caplog):
    def rings():
        raise Alarm("timed out")

    async def rings_async():
        raise Alarm("timed out")

    for failures in (GraderFailures(), limited):
        assert failures.ask("f", rings) is FAILED
        assert asyncio.run(failures.aask("f", rings_async)) is FAILED
    assert caplog.text.count("RuntimeError: Alarm: timed out") == 3
    assert "GraderError: Alarm: timed out" in caplog.text


def test_alarm_off_the_main_thread_is_explained(caplog):
    def sets_alarm():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(GraderFailures().ask, "f", sets_alarm).result() is FAILED
    assert "with a timeout, reward functions are called on the main thread" in caplog.text


def test_timeout_raised_by_the_function_is_logged_unchanged(caplog, limited):
    def own():
        raise TimeoutError("the sandbox did not answer")

    assert limited.ask("f", own) is FAILED
    assert "the sandbox did not answer" in caplog.text
    assert "In the worker process:" in caplog.text


@pytest.mark.parametrize("end", [lambda: exit(1), lambda: os._exit(3), lambda: os.kill(0, 9)])
def test_system_exit_in_a_grader_does_not_stop_the_run(limited, end):
    assert limited.ask("f", end) is FAILED
    assert limited.ask("f", lambda: 1.0) == 1.0


def test_coroutines_that_ignore_their_limit_do_not_accumulate(monkeypatch):
    monkeypatch.setattr(graders, "MAX_HUNG_GRADERS", 2)
    failures, calls = GraderFailures(timeout=0.02, max_rate=1.0), []

    async def graded():
        release = asyncio.Event()

        async def hang():
            calls.append(1)
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        found = [await failures.aask("f", hang) for _ in range(5)]
        release.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return found, await failures.aask("f", asyncio.sleep, 0, 1.0)

    assert asyncio.run(graded()) == ([FAILED] * 5, 1.0)
    assert len(calls) == 2


def test_waiting_for_a_slot_does_not_count_against_an_async_limit():
    failures, running, most = GraderFailures(timeout=0.5, concurrency=4), [], []

    async def grade(i):
        running.append(i)
        most.append(len(running))
        await asyncio.sleep(0.05)
        running.remove(i)
        return i

    async def all_of_them():
        return await asyncio.gather(*(failures.aask("f", grade, i) for i in range(80)))

    assert asyncio.run(all_of_them()) == list(range(80))  # a second in all
    assert max(most) == 4
    assert asyncio.run(all_of_them()) == list(range(80))  # in another event loop too


def test_busy_event_loop_keeps_answers_that_came_in_time():
    failures = GraderFailures(timeout=0.2)

    async def graded():
        asked = asyncio.ensure_future(failures.aask("f", asyncio.sleep, 0.05, 1.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(0.5)
        return await asked

    assert asyncio.run(graded()) == 1.0


def test_cancelling_the_caller_cancels_the_grader():
    failures, ended = GraderFailures(timeout=30), []

    async def hang():
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    async def cancelled():
        asked = asyncio.ensure_future(failures.aask("f", hang))
        await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await asyncio.sleep(0)

    asyncio.run(cancelled())
    assert ended == [True]


def test_too_many_failures_stop_the_run_and_name_the_cause():
    failures = GraderFailures(window=4, max_rate=0.5)
    for call in (boom, boom, lambda: 1.0):
        failures.ask("f", call)
    with pytest.raises(AbstainError, match="f: 3 of the last 4 calls failed") as raised:
        failures.ask("f", boom)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_few_failures_do_not_stop_the_run():
    failures = GraderFailures(window=4, max_rate=0.5)
    asked = [failures.ask("f", boom if i % 2 else lambda: 1.0) for i in range(40)]
    assert asked == [1.0, FAILED] * 20


@pytest.mark.slow
def test_failures_caused_by_peers_are_raised_and_not_counted():
    failures = GraderFailures(timeout=0.5, window=2, max_rate=0.0)
    assert failures.attempt("f", lambda: 1.0) == 1.0
    for call, error in [(boom, RuntimeError), *[(lambda: time.sleep(30), TimeoutError)] * 2]:
        with pytest.raises(error):
            failures.attempt("f", call)
    with pytest.raises(AbstainError, match="1 of the last 2"):  # with the answer above
        failures.ask("f", boom)
    assert failures.ask("f", lambda: 2.0) == 2.0


@pytest.mark.parametrize("each", [lambda f: f.ask_each, lambda f: f.aask_each])
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_failed_grading_affects_only_its_own_row(each, timeout):
    failures = GraderFailures(timeout=timeout, max_rate=1.0)
    rows = [{"x": x} for x in (3, None, 0, 2, 1)]

    def grade(x):
        if x == 0 and timeout is not None:
            time.sleep(30)
        return 6 / x

    async def grade_async(x):
        if x == 0 and timeout is not None:
            await asyncio.sleep(30)
        return 6 / x

    if each(failures) == failures.ask_each:
        found = failures.ask_each("f", grade, rows)
    else:
        found = asyncio.run(failures.aask_each("f", grade_async, rows))
    assert found == [2.0, FAILED, FAILED, 3.0, 6.0]


@pytest.mark.parametrize("timeout", [None, 30])
def test_batch_counts_once_and_fails_if_too_many_rows_fail(timeout):
    failures = GraderFailures(timeout=timeout, window=2, max_rate=0.25)
    few, many = [{"x": x} for x in (0, 1, 1, 1)], [{"x": x} for x in (0, 0, 1, 1)]

    def grade(x):
        return 1 / x

    async def grade_async(x):
        return 1 / x

    for _ in range(4):
        assert failures.ask_each("f", grade, few) == [FAILED, 1.0, 1.0, 1.0]
    with pytest.raises(AbstainError, match=r"1 of the last 2 .* ZeroDivisionError"):
        failures.ask_each("f", grade, many)
    with pytest.raises(AbstainError, match="2 of the last 2"):
        asyncio.run(failures.aask_each("f", grade_async, many))


def test_result_is_converted_in_the_calling_process(limited):
    here = os.getpid()
    for failures in (GraderFailures(), limited):
        assert failures.ask("f", Grader(lambda: 1, lambda one: (one, os.getpid()))) == (1, here)
        assert failures.ask("f", Grader(lambda: 1, boom)) is FAILED


def test_unpicklable_grader_is_refused_before_grading(limited):
    lock = threading.Lock()

    def reward():
        return lock.locked()

    async def reward_async():
        return lock.locked()

    with pytest.raises(TypeError, match=r"reward: timeout=60 .* cannot pickle '_thread.lock'"):
        limited.check("reward", reward)
    limited.check("reward", reward_async, is_async=True)
    GraderFailures().check("reward", reward)


def test_grader_that_would_copy_its_model_is_refused(limited, monkeypatch):
    monkeypatch.setattr(grader_pool, "LARGEST_GRADER", 2**20)
    weights = bytes(2**21)
    with pytest.raises(TypeError, match="more than 1 MiB"):
        limited.check("reward", lambda: len(weights))


def test_copy_starts_its_own_failure_count():
    failures = GraderFailures(timeout=3.0, window=2, max_rate=0.5, each=True, concurrency=3)
    failures.ask("f", boom)
    other = pickle.loads(pickle.dumps(failures))
    for name in ("timeout", "window", "max_rate", "each", "concurrency"):
        assert getattr(other, name) == getattr(failures, name)
    assert other.ask("f", boom) is FAILED


class Named(GraderFailures):
    def __init__(self, label, **options):
        super().__init__(**options)
        self.label = label


@pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_a_subclass_keep_class_and_attributes(copied):
    other = copied(Named("mine", window=3))
    assert (type(other), other.label, other.window) == (Named, "mine", 3)
    assert other.ask("f", boom) is FAILED


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"timeout": float("nan")}, {"max_rate": 2}, {"window": 0}, {"concurrency": 0}],
)
def test_options_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GraderFailures(**wrong)


def test_results_that_are_not_numbers():
    assert finite_or_none([1.0, None, float("nan"), float("inf")]) == [1.0, None, None, None]


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level(logging.WARNING)
