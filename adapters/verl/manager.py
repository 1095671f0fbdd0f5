"""verl: a reward manager that guards the rewards of another manager,
``reward.reward_manager.name=grpo_guard`` (docs/verl.md)."""

import asyncio
import functools
import logging
import numbers
import uuid
from collections.abc import Sequence
from typing import Any

from grpo_guard.adapters.plain_numbers import number_from
from grpo_guard.adapters.received import Row
from grpo_guard.adapters.reward_function import is_guarded
from grpo_guard.adapters.verl.actor import CollectorHandle
from grpo_guard.adapters.verl.batch import hook_data_of, last_row, rows_from
from grpo_guard.adapters.verl.groups import Settled, Trajectory, finite
from grpo_guard.adapters.verl.settings import (
    UNKNOWN_SIBLINGS_TIMEOUT,
    Settings,
    hook_missing,
    needs_hook,
)
from grpo_guard.core.completion import shown
from grpo_guard.core.verdict import Outcome
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import FAILED, GraderFailures

logger = logging.getLogger("grpo_guard")


class GuardedRewardManager:
    """Grades with one of verl's own managers, then asks the guard.

    The reward function's keys stay unchanged, except ``score``, which becomes the guarded reward.
    Every sample also gets the same set of numbers: ``guard_accept``, ``guard_reject``,
    ``guard_abstain`` (0 or 1), ``guard_left_out`` (1 if the agent-loop hook removes the sample from
    the loss), ``guard_siblings`` (number of trajectories judged together) and ``guard_raw_score``
    (the reward before the guard).

    Args:
        config, tokenizer, compute_score, more: Arguments that verl passes to any manager.

    Raises:
        FrameworkError: verl would not call the guard with this configuration; or the reward
            function is guarded already, or has a time limit and cannot be sent to a worker.
        ConfigError: the guard's file is invalid.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **more: Any) -> None:
        self.settings = Settings.of(config)
        _forbid_guarded(compute_score)
        from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

        inner = get_reward_manager_cls(self.settings.manager)
        if issubclass(inner, GuardedRewardManager):
            raise FrameworkError("verl: grpo_guard.manager: expected one of verl's own managers")
        self.inner = inner(config=config, tokenizer=tokenizer, compute_score=compute_score, **more)
        self.tokenizer = tokenizer
        self.max_tokens = int(config.actor_rollout_ref.rollout.response_length)
        self.collector = CollectorHandle(self.settings)
        policy = self.collector.policy
        # A guard that only watches leaves failures to verl.
        self._failures = None if policy.watches else self.settings.guard_config().failures()
        self._in_workers = self._failures is not None and _into_workers(self.inner, self._failures)
        # verl expects the same keys for every sample; "acc" is what it adds to a plain number.
        self._keys: tuple[str, ...] = ("acc",)
        self._needs_hook = needs_hook(self.settings.estimator, policy)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Compute the guarded reward of a trajectory, ``{"reward_score", "reward_extra_info"}``.

        Raises:
            TypeError: the reward is not a number.
            FrameworkError: the agent-loop hook is needed but missing, see `policy_for`.
            AbstainError: the guard abstained too often, or the policy says to raise.
            Exception: whatever the reward function raises, unchanged. Under the preset
                `failures_only` the trajectory is left out instead.
        """
        hook_data, policy = hook_data_of(data.non_tensor_batch), self.collector.policy
        if hook_data is None and self._needs_hook:
            # Some trainers ignore the configured manager.
            raise hook_missing(self.settings.estimator)
        try:
            # Read the rows first, because verl's managers write into the columns.
            rows = await asyncio.to_thread(
                rows_from,
                data,
                self.tokenizer,
                self.max_tokens,
                rejects_unread=policy.on_abstain == "pass" and not policy.watches,
            )
            graded = await self._graded(data)
            raw = _number(graded["reward_score"])
        except BaseException:
            uid, step = _key(data)
            if hook_data is None and uid is not None:  # otherwise the hook reports all failures
                self.collector.absent(uid, step, self.settings.rollouts)
            raise
        if hook_data is not None and hook_data.validation:
            return _answer(graded, raw, None, watches=policy.watches)
        if raw is None and not policy.watches:
            logger.warning("verl: the reward function returned no finite reward; left out")
        trajectory = self._trajectory(data, tuple(rows), raw)
        settled = None
        try:
            settled = await self.collector.settle(trajectory)
        except Exception as error:
            if not policy.watches or policy.on_abstain == "raise":
                raise
            logger.error("the guard failed; it only watches, so the run goes on", exc_info=error)
        return _answer(graded, raw, settled, watches=policy.watches)

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: Sequence[float]) -> Any:
        """Put each score at its response's last token, [B, R], with verl's own method."""
        from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

        return RewardManagerBase.assemble_rm_scores(data, scores)

    async def _graded(self, data: Any) -> dict[str, Any]:
        hook_data = hook_data_of(data.non_tensor_batch)
        if hook_data is not None and hook_data.score is not None:
            fields = data.non_tensor_batch["tool_extra_fields"][-1]
            info = _plain_info(fields.get("reward_extra_info"), data)
            watches = self.collector.policy.watches
            score = hook_data.score if watches else number_from(hook_data.score)
            return {"reward_score": score, "reward_extra_info": info}
        if self._failures is None:
            graded: dict[str, Any] = await self.inner.run_single(last_row(data))
            return graded
        # If graders ran in the manager's own threads, time spent waiting would count toward their
        # time limit.
        ask = self._failures.awatch if self._in_workers else self._failures.aask
        answer = await ask("reward function", self.inner.run_single, last_row(data))
        if answer is FAILED:
            return {"reward_score": None, "reward_extra_info": dict.fromkeys(self._keys, 0.0)}
        graded = answer
        self._keys = tuple(graded.get("reward_extra_info") or ())
        return graded

    def _trajectory(self, data: Any, rows: tuple[Row, ...], score: float | None) -> Trajectory:
        hook_data = hook_data_of(data.non_tensor_batch)
        uid, step = _key(data)
        settings = self.settings
        siblings = hook_data.siblings if hook_data else settings.rollouts
        timeout = settings.sibling_timeout
        if hook_data is None and settings.rollouts != settings.validation_rollouts:
            # Only the number of siblings in training is known.
            timeout = min(timeout, UNKNOWN_SIBLINGS_TIMEOUT)
        return Trajectory(
            # Without a uid the siblings are unknown, so the trajectory is its own group.
            uuid.uuid4().hex if uid is None else uid,
            step,
            1 if uid is None else siblings,
            rows,
            score,
            timeout,
        )


def _answer(
    graded: dict[str, Any], raw: float | None, settled: Settled | None, *, watches: bool
) -> dict[str, Any]:
    """The manager's result with the guard's columns. Without a verdict (in validation, or if a
    guard that only watches has failed) the reward is unchanged. Under a guard that only watches, it
    is even the same object."""
    score = settled.score if settled else raw or 0.0
    info = dict(graded.get("reward_extra_info") or {})
    if "score" in info and not watches:
        info["score"] = score
    info |= {
        f"guard_{outcome.value}": float(settled is not None and settled.outcome is outcome)
        for outcome in Outcome
    }
    info["guard_left_out"] = float(settled is not None and settled.left_out)
    info["guard_siblings"] = float(settled.together if settled else 0)
    info["guard_raw_score"] = 0.0 if raw is None else raw
    own = graded if watches else {"reward_score": score}
    return {**own, "reward_extra_info": info}


def _plain_info(info: Any, data: Any) -> dict[str, Any]:
    """An agent loop's output other than its reward, made safe because it can contain a peer's
    numbers. verl makes each key a column, which would replace the data set's column of the same
    name, so such keys are dropped. verl expects the same keys for every sample, so an invalid value
    becomes 0."""
    taken = {*data.non_tensor_batch, *data.batch.keys()}  # a TensorDict iterates over its rows
    given = info if isinstance(info, dict) else {}
    return {
        key: value if isinstance(value, str | bool) else number_from(value) or 0.0
        for key, value in given.items()
        if isinstance(key, str) and key not in taken
    }


def _number(score: Any) -> float | None:
    """Convert a reward to a float; None if the reward is None, NaN, infinite or too large."""
    if score is None:
        return None
    if hasattr(score, "item") and getattr(score, "size", None) is not None:
        score = score.item() if getattr(score, "ndim", 1) == 0 else score
    if not isinstance(score, numbers.Real):
        raise TypeError(f"reward_score: expected a number, got {shown(score)}")
    try:
        return finite(float(score))
    except OverflowError:  # an integer taken from a text can be arbitrarily large
        return None


def _key(data: Any) -> tuple[str | None, int | None]:
    """The key that sibling trajectories share: the prompt's uid and the step."""
    columns = data.non_tensor_batch
    uid, steps = columns.get("uid"), columns.get("global_steps")
    step = None if steps is None else int(steps[-1])
    if hook_data := hook_data_of(columns):
        step = hook_data.step
    return None if uid is None else str(uid[-1]), step


def _into_workers(inner: Any, failures: GraderFailures) -> bool:
    """If calls have a time limit, make a manager call its reward function in worker processes, and
    return whether it does. Async functions are left alone, and so is verl's `remote` manager, which
    has its own workers. Raises FrameworkError if the function cannot be sent to a worker."""
    call = inner.compute_score
    if failures.timeout is None or inner.is_async_reward_score or hasattr(inner, "reward_worker"):
        return False
    try:
        failures.check("verl: the reward function", call)
    except TypeError as error:
        raise FrameworkError(str(error)) from error

    async def compute_score(**given: Any) -> Any:
        return await failures.in_worker(call, **given)

    inner.compute_score, inner.is_async_reward_score = compute_score, True
    return True


def _forbid_guarded(compute_score: Any) -> None:
    function = compute_score
    while isinstance(function, functools.partial):
        # verl wraps the user's function in a partial, as its first argument.
        function = function.args[0] if function.args else function.func
    if is_guarded(function):
        raise FrameworkError(
            "verl: the reward function is already guarded; give GuardedRewardManager the "
            "function itself, or leave the manager out"
        )
