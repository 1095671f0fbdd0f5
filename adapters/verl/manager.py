"""verl: a reward manager that guards what another manager graded.

    reward.reward_manager.source=importlib
    reward.reward_manager.name=GuardedRewardManager
    reward.reward_manager.module.path=pkg://grpo_guard.adapters.verl.manager
    +grpo_guard.config=guard.yaml

Since `grpo_guard.adapters.verl.plugin` is an entry point of ``verl.plugins``,
``reward.reward_manager.name=grpo_guard`` does the same.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import numbers
import uuid
from collections.abc import Sequence
from typing import Any

from grpo_guard.adapters.plain_numbers import number_from
from grpo_guard.adapters.received import Row
from grpo_guard.adapters.verl.actor import CollectorHandle
from grpo_guard.adapters.verl.batch import last_row, rows_from, told_of
from grpo_guard.adapters.verl.groups import Settled, Trajectory, finite
from grpo_guard.adapters.verl.settings import UNTOLD_TIMEOUT, Settings, hook_missing, needs_hook
from grpo_guard.completion import shown
from grpo_guard.framework import FrameworkError
from grpo_guard.graders import FAILED
from grpo_guard.guard import Guard
from grpo_guard.verdict import Outcome

logger = logging.getLogger("grpo_guard")


class GuardedRewardManager:
    """Grades with verl's own manager, then asks the guard.

    It does not touch the reward function's keys, except ``score``, which is the guarded reward, and
    adds the same flat numbers to each sample: ``guard_accept``, ``guard_reject``,
    ``guard_abstain`` (0 or 1), ``guard_left_out`` (1: the agent-loop hook takes it out of the
    loss), ``guard_siblings`` (judged together with it) and ``guard_raw_score`` (before the guard).

    Args:
        config, tokenizer, compute_score, more: As verl passes them to any manager.

    Raises:
        FrameworkError: the configuration is one in which verl would not call the guard, or the
            reward function is guarded already.
        ConfigError: of the guard's file.
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
        # A guard that only watches leaves failures to verl, as they were.
        watches = self.collector.policy.watches
        self._failures = None if watches else self.settings.guard_config().failures()
        # verl wants the same keys of every sample; these are what it adds to a plain number.
        self._keys: tuple[str, ...] = ("acc",)
        self._needs_hook = needs_hook(self.settings.estimator, self.collector.policy)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Reward of one trajectory: ``{"reward_score", "reward_extra_info"}``.

        Raises:
            TypeError: the reward is no number.
            FrameworkError: the hook is needed and not there, see `policy_for`.
            AbstainError: as the policy has it.
            Exception: whatever the reward function raises, unchanged. Under the preset
                `failures_only` it is left out instead.
        """
        told, policy = told_of(data.non_tensor_batch), self.collector.policy
        if told is None and self._needs_hook:
            # Some trainers ignore the manager that is named.
            raise hook_missing(self.settings.estimator)
        try:
            # Read first: verl's managers write into the columns.
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
            if told is None and uid is not None:  # else the hook tells, who knows of all failures
                self.collector.absent(uid, step, self.settings.rollouts)
            raise
        if told is not None and told.validation:
            return (_watched if policy.watches else _answer)(graded, raw, None)
        if raw is None and not policy.watches:
            logger.warning("verl: the reward function gave no finite reward; left out")
        trajectory = self._trajectory(data, tuple(rows), raw)
        if policy.watches:
            return _watched(graded, raw, await self._seen(trajectory))
        return _answer(graded, raw, await self.collector.settle(trajectory))

    async def _seen(self, trajectory: Trajectory) -> Settled | None:
        """The collector's word for a guard that only watches; None where it has none, since its
        failure is no reason to end the run."""
        try:
            return await self.collector.settle(trajectory)
        except Exception as error:
            if self.collector.policy.on_abstain == "raise":
                raise
            logger.error("the guard failed; it only watches, so the run goes on", exc_info=error)
            return None

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: Sequence[float]) -> Any:
        """verl's own: the score at the last token of each response, [B, R]."""
        from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

        return RewardManagerBase.assemble_rm_scores(data, scores)

    async def _graded(self, data: Any) -> dict[str, Any]:
        told = told_of(data.non_tensor_batch)
        if told is not None and told.score is not None:
            fields = data.non_tensor_batch["tool_extra_fields"][-1]
            info = _plain_info(fields.get("reward_extra_info"), data)
            watches = self.collector.policy.watches
            score = told.score if watches else number_from(told.score)
            return {"reward_score": score, "reward_extra_info": info}
        if self._failures is None:
            graded: dict[str, Any] = await self.inner.run_single(last_row(data))
            return graded
        answer = await self._failures.aask("reward function", self.inner.run_single, last_row(data))
        if answer is FAILED:
            return {"reward_score": None, "reward_extra_info": dict.fromkeys(self._keys, 0.0)}
        graded = answer
        self._keys = tuple(graded.get("reward_extra_info") or ())
        return graded

    def _trajectory(self, data: Any, rows: tuple[Row, ...], score: float | None) -> Trajectory:
        told = told_of(data.non_tensor_batch)
        uid, step = _key(data)
        siblings = told.siblings if told else self.settings.rollouts
        return Trajectory(
            # Without a uid nothing is known of siblings: it is a group of its own.
            uuid.uuid4().hex if uid is None else uid,
            step,
            1 if uid is None else siblings,
            rows,
            score,
            self._timeout(told is not None),
        )

    def _timeout(self, told: bool) -> float:
        timeout = self.settings.sibling_timeout
        # All that is known without the hook is how many siblings there are in training.
        same = self.settings.rollouts == self.settings.validation_rollouts
        return timeout if told or same else min(timeout, UNTOLD_TIMEOUT)


def _answer(graded: dict[str, Any], raw: float | None, settled: Settled | None) -> dict[str, Any]:
    """What the manager returns; without a verdict (validation) the reward stays."""
    score = settled.score if settled else raw or 0.0
    info = dict(graded.get("reward_extra_info") or {})
    if "score" in info:
        info["score"] = score
    info |= {
        f"guard_{outcome.value}": float(settled is not None and settled.outcome is outcome)
        for outcome in Outcome
    }
    info["guard_left_out"] = float(settled is not None and settled.left_out)
    info["guard_siblings"] = float(settled.together if settled else 0)
    info["guard_raw_score"] = 0.0 if raw is None else raw
    return {"reward_score": score, "reward_extra_info": info}


def _watched(graded: dict[str, Any], raw: float | None, settled: Settled | None) -> dict[str, Any]:
    """`_answer` of a guard that only watches: its columns, and the reward's very object."""
    answer = _answer({**graded, "reward_extra_info": {}}, raw, settled)["reward_extra_info"]
    # A guard's failure has a column, too: verl wants the same ones of every sample.
    info = {**(graded.get("reward_extra_info") or {}), **answer}
    return {**graded, "reward_extra_info": info}


def _plain_info(info: Any, data: Any) -> dict[str, Any]:
    """What an agent loop says beside its reward, in which a peer's numbers may be.

    verl makes a column of each key, in place of the data set's own of that name; it wants the same
    keys of every sample, so that a value that is none becomes 0.
    """
    taken = {*data.non_tensor_batch, *data.batch.keys()}  # a TensorDict iterates over its rows
    given = info if isinstance(info, dict) else {}
    return {
        key: value if isinstance(value, str | bool) else number_from(value) or 0.0
        for key, value in given.items()
        if isinstance(key, str) and key not in taken
    }


def _number(score: Any) -> float | None:
    """A reward as a float; None where it is None, NaN or infinite."""
    if score is None:
        return None
    if hasattr(score, "item") and getattr(score, "size", None) is not None:
        score = score.item() if getattr(score, "ndim", 1) == 0 else score
    if not isinstance(score, numbers.Real):
        raise TypeError(f"reward_score: expected a number, got {shown(score)}")
    try:
        return finite(float(score))
    except OverflowError:  # an integer out of an author's text has no end
        return None


def _key(data: Any) -> tuple[str | None, int | None]:
    """What siblings have in common: the prompt's uid and the step."""
    columns = data.non_tensor_batch
    told = told_of(columns)
    step = columns.get("global_steps")
    number = told.step if told else None if step is None else int(step[-1])
    uid = columns.get("uid")
    return None if uid is None else str(uid[-1]), number


def _forbid_guarded(compute_score: Any) -> None:
    function = compute_score
    while isinstance(function, functools.partial):
        # verl's has the user's function as its first argument.
        function = function.args[0] if function.args else function.func
    if isinstance(getattr(function, "guard", None), Guard):
        raise FrameworkError(
            "verl: the reward function is guarded already; give GuardedRewardManager the "
            "function itself, or leave the manager out"
        )
