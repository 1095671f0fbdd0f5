"""verifiers (0.4): the ``@vf.reward`` methods of a `Task`, and with it prime-rl's environments.

Guard the class. A task sums its weighted rewards, judges and plugged functions among them, and all
of them must fall together::

    @guard(verifier, policy=Policy(on_abstain="zero"), framework="verifiers")
    class Sums(vf.Task[SumsData]):
        @vf.reward
        async def correct(self, trace: vf.Trace) -> float: ...

A single reward can be guarded as well, under or over its ``@vf.reward``. Rewards that an `Env`
records in ``finalize`` come after a task's scoring and are not reached.

Each turn that the model wrote is a completion with its token ids: see `grpo_guard.adapters.traces`.
An exception, the guard's own as well, becomes an error of the trace, and prime-rl leaves such a
trace out of its group.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_guard.adapters.reward_function import RewardFunction, forbid_leaving_out
from grpo_guard.adapters.traces import review_of
from grpo_guard.framework import FrameworkError
from grpo_guard.guard import Guard, Review


class VerifiersAdapter:
    """Guards a `Task` class, or one reward ``async (self, trace[, task, runtime])``."""

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """The guarded form: a subclass of the same name, or a function with the same marks.

        Raises:
            FrameworkError: a list (guard the class), neither task nor function, or a policy that
                leaves completions out of their group.
        """
        if isinstance(reward, list | tuple):
            raise FrameworkError(
                "verifiers takes one reward function, got a list; guard the Task class, and all "
                "its rewards are vetoed together"
            )
        forbid_leaving_out(guard.policy, "verifiers")
        if inspect.isclass(reward) and callable(getattr(reward, "score", None)):
            return _guarded_task(reward, guard)
        return _guarded_reward(RewardFunction.inspect(reward), guard)


def _guarded_task(task: Any, guard: Guard) -> Any:
    class Guarded(task):  # type: ignore[misc]
        async def score(self, trace: Any, runtime: Any = None) -> None:
            if getattr(self, "scoring_deferred", False):
                await super().score(trace, runtime)
                return
            # First: where the guard fails, nothing has been scored yet.
            review = await asyncio.to_thread(review_of, guard, trace)
            try:
                await super().score(trace, runtime)
            finally:  # rewards recorded before a failure stay on the trace
                _veto(trace, guard, review)
            _log(trace, review)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Guarded, name, getattr(task, name))
    return Guarded


def _veto(trace: Any, guard: Guard, review: Review) -> None:
    """All rewards of a trace after the veto; a number of ``on_reject`` counts once in their sum.

    What is weighed below 0 is settled as what it comes to: a cost of -5 is a gain by then.
    """
    policy, said, recorded = guard.policy, False, dict(trace.rewards)
    trace.rewards.update(dict.fromkeys(recorded))  # should the policy raise, nothing is earned
    for name, reward in recorded.items():
        trace.rewards[name] = reward
        if reward is None or reward.weight == 0:
            continue
        once = said and not isinstance(policy.on_reject, str)
        rest = replace(policy, on_reject="zero") if once else policy
        value = reward.score * reward.weight
        trace.rewards[name], said = None, True
        (kept,) = guard.settle([value], review, policy=rest)
        if kept is not value:
            reward = type(reward)(score=(kept or 0.0) / reward.weight, weight=reward.weight)
        trace.rewards[name] = reward


def _guarded_reward(function: RewardFunction, guard: Guard) -> Any:
    def settle(review: Review, result: Any, given: Mapping[str, Any]) -> Any:
        _log(given["trace"], review)
        keyed = isinstance(result, Mapping)
        rewards = [function.rewards([x], 1)[0] for x in (result.values() if keyed else [result])]
        first = guard.policy
        rest = first if isinstance(first.on_reject, str) else replace(first, on_reject="zero")
        kept = [
            guard.settle([reward], review, policy=rest if i else first)[0]
            for i, reward in enumerate(rewards)
        ]
        return dict(zip(result, kept, strict=True)) if keyed else kept[0]

    async def guarded_async(*task: Any, **given: Any) -> Any:
        _require_one(task)
        review = await asyncio.to_thread(review_of, guard, given["trace"])
        result = await function.call(*task, **function.arguments(given))
        return settle(review, result, given)

    def guarded(*task: Any, **given: Any) -> Any:
        _require_one(task)
        review = review_of(guard, given["trace"])
        return settle(review, function.call(*task, **function.arguments(given)), given)

    wrapped = function.dress(guarded_async if function.is_async else guarded)
    # verifiers passes what a signature names, and knows a reward by its attributes.
    wrapped.__signature__ = _with_trace(inspect.signature(function.call))
    if inspect.isroutine(function.call):
        marks = {k: v for k, v in vars(function.call).items() if not k.startswith("__")}
        wrapped.__dict__.update(marks)
    wrapped.guard = guard
    return wrapped


def _with_trace(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    if "trace" not in signature.parameters:
        trace = inspect.Parameter("trace", inspect.Parameter.KEYWORD_ONLY)
        rest = parameters[-1:] if parameters and parameters[-1].kind is trace.VAR_KEYWORD else []
        parameters = [*parameters[: len(parameters) - len(rest)], trace, *rest]
    return signature.replace(parameters=parameters)


def _require_one(task: tuple[Any, ...]) -> None:
    """Two guarded rewards of a task would judge a trace twice, and a ledger count it twice."""
    if not task:
        return
    names = {name for kind in type(task[0]).__mro__ for name in vars(kind)}
    guarded = [name for name in sorted(names) if isinstance(_guard_of(type(task[0]), name), Guard)]
    if len(guarded) > 1:
        raise FrameworkError(
            f"{type(task[0]).__name__}: {len(guarded)} guarded rewards ({', '.join(guarded)}); "
            "guard the Task class instead"
        )


def _guard_of(task: type, name: str) -> Any:
    return getattr(inspect.getattr_static(task, name, None), "guard", None)


def _log(trace: Any, review: Review) -> None:
    record = getattr(trace, "record_metric", None)
    if record is not None:
        for name, value in review.metrics.items():
            record(name, value)
