"""verifiers (0.4): the ``@vf.reward`` methods of a `Task`, and thereby prime-rl's environments.

Guard the class: a task sums its weighted rewards, including those of judges and plugged-in
functions, and all of them must be vetoed together. A single reward can also be guarded, with the
guard below or above ``@vf.reward``. Rewards that an `Env` records in ``finalize`` come after a
task's scoring and are not guarded.

Each branch of a trace is a completion with its token ids: see `grpo_guard.adapters.traces`. An
exception, including the guard's own, becomes an error of the trace, and prime-rl leaves such a
trace out of its group.
"""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from grpo_guard.adapters.reward_function import RewardFunction, is_guarded, rewards_only
from grpo_guard.adapters.traces import review_all
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.framework import FrameworkError


class VerifiersAdapter:
    """Guards a `Task` class, or a single reward method ``async (self, trace[, task, runtime])``."""

    recognised_by: ClassVar = frozenset({"trace"})

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a class in a subclass of the same name, or a function in a function that keeps the
        attributes verifiers recognises it by.

        Raises:
            FrameworkError: the reward is a list (guard the class instead), or neither a task class
                nor a function; or the policy leaves completions out of their group.
        """
        if isinstance(reward, list | tuple):
            raise FrameworkError(
                "verifiers takes one reward function, got a list; guard the Task class, and all "
                "its rewards are vetoed together"
            )
        guard = rewards_only(guard, "verifiers")
        if inspect.isclass(reward) and callable(getattr(reward, "score", None)):
            return _guarded_task(reward, guard)
        return _guarded_reward(RewardFunction.inspect(reward), guard)


def _guarded_task(task: Any, guard: Guard) -> Any:
    class Guarded(task):  # type: ignore[misc]
        async def score(self, trace: Any, runtime: Any = None) -> None:
            if getattr(self, "scoring_deferred", False):
                await super().score(trace, runtime)
                return
            # The review comes first: if the guard fails, nothing has been scored yet.
            review = await asyncio.to_thread(review_all, guard, [(trace, None)])
            try:
                await super().score(trace, runtime)
            finally:  # rewards recorded before a failure stay on the trace
                _veto(trace, guard, review)
            _log(trace, review)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Guarded, name, getattr(task, name))
    return Guarded


def _veto(trace: Any, guard: Guard, review: Review) -> None:
    """Apply the verdict to the weighted sum of a trace's rewards, which is all that a trainer sees,
    and record the resulting rewards."""
    recorded = dict(trace.rewards)
    counted = {k: r for k, r in recorded.items() if r is not None and r.weight != 0}
    trace.rewards.update(dict.fromkeys(recorded))  # if the policy raises, no reward remains
    sums = {name: reward.score * reward.weight for name, reward in counted.items()}
    for name, kept in _settled(guard, review, sums).items():
        was = counted[name]
        recorded[name] = type(was)(score=kept / was.weight, weight=was.weight)
    trace.rewards.update(recorded)


def _settled(guard: Guard, review: Review, rewards: Mapping[str, float]) -> dict[str, float]:
    """Return the rewards that the veto changes: all of a trace's rewards, or none.

    The sum of the rewards is settled as a single reward and written to the first one. If the
    rewards were settled separately, a number in the policy would count several times, and a penalty
    would set the minimum for another reward.
    """
    total = sum(rewards.values()) if len(rewards) > 1 else next(iter(rewards.values()), 0.0)
    (kept,) = guard.settle([total], review)
    if kept is total:
        return {}
    return {name: 0.0 if i else kept or 0.0 for i, name in enumerate(rewards)}


def _guarded_reward(function: RewardFunction, guard: Guard) -> Any:
    def look(*task: Any, **given: Any) -> Review:
        _require_one(task)
        found = review_all(guard, [(given["trace"], None)])
        _log(given["trace"], found)
        return found

    def settle(review: Review, result: Any, /, *task: Any, **given: Any) -> Any:
        if not isinstance(result, Mapping):
            return guard.settle(function.rewards([result], 1), review)[0]
        scores = dict(zip(result, function.rewards(result.values(), len(result)), strict=True))
        numbers = {name: score for name, score in scores.items() if score is not None}
        return scores | _settled(guard, review, numbers)

    wrapped = function.guarded(guard, look, settle, function.arguments)
    # verifiers passes the arguments that a signature names, and recognises a reward by its
    # attributes.
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
    """Refuse two guarded rewards in a task, because the trace would be judged and logged twice."""
    if not task:
        return
    kind = type(task[0])
    methods = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    guarded = [name for name, method in methods.items() if is_guarded(method)]
    if len(guarded) > 1:
        raise FrameworkError(
            f"{kind.__name__}: {len(guarded)} guarded rewards ({', '.join(guarded)}); "
            "guard the Task class instead"
        )


def _log(trace: Any, review: Review) -> None:
    record = getattr(trace, "record_metric", None)
    if record is not None:
        for name, value in review.metrics.items():
            record(name, value)
