"""Texts that are read in worker processes: the same verdicts, whatever becomes of the workers."""

import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from grpo_guard import (
    AllOf,
    ArithmeticVerifier,
    Completion,
    Guard,
    Policy,
    ScreensVerifier,
    guard,
    presets,
)
from grpo_guard.config import GuardConfig
from grpo_guard.core.options import ConfigError
from grpo_guard.core.verdict import Cause, Finding, accept
from grpo_guard.guard import grader_pool
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.guard.workers import processes, texts
from grpo_guard.guard.workers.plan import Plan, without_extras
from grpo_guard.guard.workers.texts import Workers
from tests.helpers.subprocesses import environment
from tests.workers.readers import KeyedRule, Obeying, Remembering, meeting, pids
from tests.workers.worker_texts import FOLDERS, STACKS, hostile, public, reviewed


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ("cascade", "not"))) for n in STACKS],
)
def test_hostile_texts_get_the_verdicts_of_one_process(name):
    batch = list(hostile())
    here, there = (reviewed(STACKS[name], batch, workers) for workers in (0, 2))
    assert here == there
    assert len({verdict[0] for verdict in here}) > 1  # they tell something apart


def test_public_texts_get_the_verdicts_of_one_process():
    batch = [one for folder in FOLDERS if folder.is_dir() for one in public(folder)]
    if not batch:
        pytest.skip("needs GSM8K's folder (GRPO_GUARD_GSM8K) and those next to it")
    make = presets.different_weights
    assert reviewed(make, batch, 0) == reviewed(make, batch, 3)


def test_texts_are_read_elsewhere_by_processes_without_torch(tmp_path):
    """The negative control of the tests above: there are workers, and they read everything."""
    batch = meeting(tmp_path)
    found = Guard(Obeying(), workers=2).review(batch)
    assert len(pids(found.verdicts)) == 2
    assert os.getpid() not in pids(found.verdicts)
    assert {v.findings[0].message for v in found.verdicts} == {"[]"}
    assert found.metrics["guard/workers"] == 2
    assert found.metrics["guard/workers_lost"] == 0
    alone = Guard(Obeying(), workers=0).review(meeting(tmp_path, workers=1))
    assert pids(alone.verdicts) == {os.getpid()}
    assert "guard/workers" not in alone.metrics


def test_a_review_in_this_process_loads_nothing_that_only_processes_need():
    code = (
        "import sys\nfrom grpo_guard import ArithmeticVerifier, Completion, Guard\n"
        "Guard(ArithmeticVerifier()).review([Completion('q', '1 + 1 = 2')])\n"
        "print([name for name in ('cloudpickle', 'grpo_guard.guard.workers.plan')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_verifier_of_ones_own_stays_here_unless_it_says_otherwise():
    class Local(Obeying):
        in_workers = False

    found = Guard(Local() & ScreensVerifier(), workers=1).verify([Completion("q", "text")])
    assert pids([found[0].members[0]]) == {os.getpid()}


def test_guards_share_processes_and_the_last_one_ends_them(tmp_path):
    first, second = Guard(Obeying(), workers=2), Guard(Obeying(), workers=2)
    known = pids(first.verify(meeting(tmp_path)))
    assert len(known) == 2
    assert pids(second.verify(meeting(tmp_path))) == known
    first.workers.close()
    assert pids(second.verify(meeting(tmp_path))) == known
    second.workers.close()
    assert pids(second.verify(meeting(tmp_path))).isdisjoint(known)


@pytest.mark.parametrize("how", [pytest.param("die", marks=pytest.mark.slow), "die here", "raise"])
def test_a_text_that_costs_workers_abstains_and_no_other_does(how):
    batch = [Completion("q", how if i == 7 else f"text {i}", node=f"n{i % 4}") for i in range(40)]
    the_guard = Guard(Obeying(), workers=2)
    found = the_guard.review(batch)
    assert [v.abstained for v in found.verdicts] == [i == 7 for i in range(40)]
    assert found.verdicts[7].cause is Cause.FAULT
    assert found.metrics["guard/workers_lost"] >= (3 if how != "raise" else 0)
    assert not any(v.abstained for v in the_guard.verify(batch[:7]))


@pytest.mark.slow
def test_texts_that_hang_cost_only_themselves(monkeypatch):
    monkeypatch.setattr(processes, "BASE_SECONDS", 1.0)
    batch = [
        Completion("q", "hang" if i in (3, 11) else f"text {i}", node=f"n{i}") for i in range(16)
    ]
    found = Guard(Obeying(), workers=2).verify(batch)
    assert [i for i, v in enumerate(found) if v.abstained] == [3, 11]
    assert {found[3].cause, found[11].cause} == {Cause.TIMEOUT}
    assert "no answer within" in found[3].findings[0].message


def test_a_time_out_that_a_process_reports_itself_is_one(monkeypatch):
    """Both sides count the seconds, and the process may be the first to say so."""

    def late(worker, *arguments):
        raise TimeoutError("no answer within 2 s")

    the_guard = Guard(Obeying(), workers=1)
    assert not the_guard.verify([Completion("q", "the first takes longest")])[0].abstained
    monkeypatch.setattr(processes.WorkerProcess, "call", late)
    monkeypatch.setattr(processes, "_ready", lambda worker: True)
    (found,) = the_guard.verify([Completion("q", "text")])
    assert (found.abstained, found.cause) == (True, Cause.TIMEOUT)


def test_a_worker_killed_from_outside_loses_nothing(tmp_path):
    the_guard = Guard(Obeying(), workers=2)
    for one in pids(the_guard.verify(meeting(tmp_path))):
        os.kill(one, signal.SIGKILL)
    assert not any(v.abstained for v in the_guard.verify(meeting(tmp_path)))


def test_what_cannot_be_sent_stays_in_this_process_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        found = Guard(Remembering() & ScreensVerifier(), workers=1).verify([Completion("q", "hm")])
    assert pids([found[0].members[0]]) == {os.getpid()}
    assert "verifier remembering cannot be sent to another process" in caplog.text
    assert "lock" in caplog.text


def test_a_completion_that_cannot_be_sent_is_read_in_this_process(caplog):
    class Local:
        def __reduce__(self):
            return _only_here, (os.getpid(),)

    held = [{"key": threading.Lock()}, {"key": Local()}, {"key": 7}]
    batch = [Completion("q", "text", metadata=one) for one in held]
    the_guard = Guard(KeyedRule(), workers=1)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        found = the_guard.verify(batch)
    assert [v.findings[0].message for v in found] == [str(one["key"]) for one in held]
    assert "are read in this process" in caplog.text
    assert the_guard.workers.figures()["guard/workers_lost"] == 0


def _only_here(pid):
    if os.getpid() != pid:
        raise RuntimeError("not here")
    return pid


def test_where_the_call_itself_fails_no_worker_is_lost_and_nothing_abstains(caplog):
    """As after an upgrade of the package under a running trainer."""

    class Exiting(Obeying):
        timeout = None

        def __init__(self):
            self.home = os.getpid()

        def verify(self, batch):
            if os.getpid() != self.home:
                raise SystemExit("other code on disk")
            return super().verify(batch)

    the_guard = Guard(Exiting(), workers=2)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        found = the_guard.review([Completion("q", f"text {i}") for i in range(40)])
    assert pids(found.verdicts) == {os.getpid()}
    assert found.metrics["guard/workers_lost"] == 0
    assert "other code on disk" in caplog.text


def test_rules_of_this_library_are_sent_no_objects_of_the_trainer():
    for completion in hostile():
        sent = without_extras(completion)
        assert pickle.loads(pickle.dumps(sent)) == sent
        assert sent.prompt_text == completion.prompt_text
        assert (sent.text, sent.node, sent.given) == (
            completion.text,
            completion.node,
            completion.given,
        )


def test_where_no_process_can_be_started_texts_are_read_in_this_one(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    the_guard = Guard(Obeying(), workers=5)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        found = the_guard.verify([Completion("q", f"text {i}") for i in range(9)])
        assert pids(found) == pids(the_guard.verify([Completion("q", "text")])) == {os.getpid()}
    assert "expected 5 workers to start, got none" in caplog.text


def test_a_policy_that_pays_for_abstentions_is_refused_with_workers(monkeypatch):
    paying = Policy(on_abstain="pass")
    with pytest.raises(ValueError, match="choose workers=0"):
        Guard(ScreensVerifier(), policy=paying, workers=2)
    with pytest.raises(ValueError, match="choose workers=0"):
        Guard(ScreensVerifier(), workers=2).with_policy(paying)
    monkeypatch.setattr(texts, "WORTH_CHARACTERS", 1)
    monkeypatch.setattr(Workers, "count", 2)
    unasked = Guard(Obeying(), policy=paying)  # it starts none
    assert pids(unasked.verify([Completion("q", "text")])) == {os.getpid()}
    watching = Guard(Obeying(), policy=Policy("keep", "pass"), workers=1)
    assert pids(watching.verify([Completion("q", "text")])) != {os.getpid()}


def test_processes_are_started_unasked_for_large_batches_alone(monkeypatch):
    monkeypatch.setattr(grader_pool, "cores", lambda: 4)
    monkeypatch.setattr(texts, "WORTH_CHARACTERS", 1000)
    the_guard = Guard(Obeying())
    assert the_guard.workers.count == 2
    assert pids(the_guard.verify([Completion("q", "a" * 99) for _ in range(10)])) == {os.getpid()}
    assert the_guard.metrics([], []) == {}
    assert os.getpid() not in pids(
        the_guard.verify([Completion("q", "a" * 100) for _ in range(10)])
    )
    monkeypatch.setattr(grader_pool, "cores", lambda: 3)
    assert Workers().count == 0  # one process would only move the work
    monkeypatch.setattr(grader_pool, "cores", lambda: 200)
    assert Workers().count == texts.MOST_UNASKED
    monkeypatch.setenv("RAY_RAYLET_PID", "1")
    assert Workers().count == 0


@pytest.mark.parametrize(
    ("number", "error"),
    [(-1, ValueError), (10**6, ValueError), (True, TypeError), ("2", TypeError)],
)
def test_numbers_that_are_refused(number, error):
    with pytest.raises(error, match="workers: expected"):
        Guard(ScreensVerifier(), workers=number)


def test_limits_of_the_interpreter_hold_in_workers_too():
    class Limits(Obeying):
        def _verdict(self, completion):
            limits = f"{sys.getrecursionlimit()} {sys.get_int_max_str_digits()}"
            return accept(self.name, findings=(Finding(str(os.getpid()), limits),))

    before = sys.getrecursionlimit(), sys.get_int_max_str_digits()
    try:
        sys.setrecursionlimit(1234)
        sys.set_int_max_str_digits(777)
        (found,) = Guard(Limits(), workers=1).verify([Completion("q", "text")])
    finally:
        sys.setrecursionlimit(before[0])
        sys.set_int_max_str_digits(before[1])
    assert found.findings[0].message == "1234 777"


def test_after_a_loss_a_policy_that_pays_for_abstentions_settles_nothing(monkeypatch):
    monkeypatch.setattr(texts, "WORTH_CHARACTERS", 1)
    monkeypatch.setattr(Workers, "count", 1)
    the_guard, paying = Guard(Obeying()), Policy(on_abstain="pass")
    fine = the_guard.review([Completion("q", "text")])
    assert the_guard.settle([1.0], fine, policy=paying) == [1.0]
    dies = the_guard.review([Completion("q", "die")])
    with pytest.raises(ValueError, match="cost a worker process"):
        the_guard.settle([1.0], dies, policy=paying)


def test_an_interrupt_leaves_nothing_behind():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        _interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted():
    the_guard = Guard(Obeying(), workers=1)
    batch = [Completion("q", "text"), Completion("q", "hang")]
    the_guard.verify(batch[:1])
    timer = threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        the_guard.verify(batch[1:])
    the_guard.workers.close()
    assert not the_guard.verify(batch[:1])[0].abstained


def test_copies_of_a_guard_share_its_workers_and_pickles_start_anew():
    one = Guard(ScreensVerifier(), workers=2)
    other = one.with_policy(Policy(on_reject="drop"))
    one.workers = 3
    assert other.workers is one.workers
    for copied in (pickle.loads(pickle.dumps(one.workers)), copy.deepcopy(one.workers)):
        assert (copied.number, copied.figures()["guard/workers"]) == (3, 0)


def test_the_decorator_and_presets_take_workers():
    @guard(Obeying(), framework="trl", workers=1)
    def reward(completions, **kwargs):
        return [1.0 for _ in completions]

    assert reward(prompts=["q"], completions=["text"]) == [1.0]
    assert presets.different_weights(workers=3).workers.number == 3
    assert presets.judged("shipped", workers=2).workers.number == 2


def test_a_guard_file_says_how_many():
    for file in ("preset: different_weights", "verifier: {type: arithmetic}"):
        assert GuardConfig.from_text(f"{file}\nworkers: 2", "f").build().workers.number == 2
        assert GuardConfig.from_text(file, "f").build().workers.number is None
    with pytest.raises(ConfigError, match="workers"):
        GuardConfig.from_text("preset: different_weights\nworkers: -2", "f")
    paying = "preset: different_weights\nworkers: 2\npolicy: {on_abstain: pass}"
    with pytest.raises(ConfigError, match="pass"):
        GuardConfig.from_text(paying, "f").build()


def test_what_a_spot_check_draws_is_all_that_is_read():
    plan = Plan.of(AllOf(ScreensVerifier(), SpotCheck(ArithmeticVerifier(), Obeying())))
    assert [[one.name for one in group.runnables] for group in plan.groups] == [
        ["screens"], ["arithmetic", "obeying"],
    ]  # fmt: skip
    assert [group.bare for group in plan.groups] == [True, False]
    assert plan.whole
    assert not Plan.of(SpotCheck(ArithmeticVerifier())).whole
