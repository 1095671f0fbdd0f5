"""A user's reward functions, named in verl's configuration by file or as a package."""

import asyncio
import re
import signal

from grpo_guard import CompletionVerifier, Policy, guard
from grpo_guard.core.verdict import accept, reject


class NoFive(CompletionVerifier):
    name = "no_five"

    def verify(self, batch):
        return [
            reject(self.name, message="5") if "5" in c.text else accept(self.name) for c in batch
        ]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    right = solution_str.endswith(f"#### {ground_truth}")
    return {"score": float(right) + bonus, "acc": float(right)}


async def compute_score_async(data_source, solution_str, ground_truth, extra_info=None, **more):
    await asyncio.sleep(0)
    return 1.0 if solution_str.endswith(f"#### {ground_truth}") else -1.0


class Grader:
    async def __call__(self, data_source, solution_str, ground_truth, extra_info=None):
        return 1.0


def failing(data_source, solution_str, ground_truth, extra_info=None):
    if "know" in solution_str:
        raise KeyError("the user's own")
    return 1.0


def with_an_alarm(data_source, solution_str, ground_truth, extra_info=None):
    """Limits its own time, as math-verify does, and hangs where no alarm helps."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.alarm(1)
    if "know" in solution_str:
        re.match("(a+)+$", "a" * 40 + "b")
    signal.alarm(0)
    return 1.0


def not_a_number(data_source, solution_str, ground_truth, extra_info=None):
    return float("nan") if "know" in solution_str else 1.0


def _guarded(function):
    """With its own guard: a veto pays the lowest reward that its guard has seen."""
    return guard(NoFive(), policy=Policy(on_abstain="zero"))(function)


guarded = _guarded(compute_score)
guarded_async = _guarded(compute_score_async)
grader = Grader()
guarded_object = _guarded(grader)
