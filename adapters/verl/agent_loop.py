"""verl: the agent-loop hook, which passes on information that reward workers do not receive.

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=\
grpo_guard.adapters.verl.agent_loop.GuardedAgentLoopManager

The hook tells the reward manager the number of siblings, whether a trajectory is for validation,
and which tokens the model wrote, with their log-probs; it reports failed rollouts to the collector;
and it zeroes the ``response_mask`` of left-out completions, so that no loss, KL or entropy term
trains on them (except in bypass mode).

`GuardedAgentLoopManager` is for verl's current trainers, `GuardedAgentLoopManagerV0` for
``trainer.use_v1=False``. For your own worker or manager, list `GuardedRollouts` or `GuardedManager`
first in the class's bases.
"""

import contextvars
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from grpo_guard.adapters.plain_numbers import log_probs_from
from grpo_guard.adapters.received import read
from grpo_guard.adapters.verl.actor import CollectorHandle
from grpo_guard.adapters.verl.batch import HOOK_DATA, HookData
from grpo_guard.adapters.verl.settings import (
    Settings,
    bypasses,
    empty_batch_warning,
    training_rollouts,
)
from grpo_guard.core.pages import page
from grpo_guard.guard.framework import FrameworkError

logger = logging.getLogger("grpo_guard")


@dataclass(slots=True)
class _Rollout:
    """The state of the rollout that the current asyncio task is working on."""

    validation: bool
    siblings: int
    step: int | None
    scored: bool = False
    left_out: bool = False
    unusable: bool = False


_rollout: contextvars.ContextVar[_Rollout] = contextvars.ContextVar("grpo_guard_rollout")
_siblings: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "grpo_guard_siblings", default=None
)


class GuardedRollouts:
    """Mixin that makes verl's ``AgentLoopWorker`` and its subclasses pass the facts about a rollout
    on to the guard."""

    config: Any
    reward_loop_worker_handles: Any
    _handle: CollectorHandle | None = None

    async def _run_prompt(self, prompt: Any, *args: Any, **kwargs: Any) -> None:
        """Store the number of answers per prompt if the data set gives one; the tasks of the prompt
        inherit the context variable."""
        n = prompt.get("__rollout_n__")
        _siblings.set(None if n is None else int(n))
        await super()._run_prompt(prompt, *args, **kwargs)  # type: ignore[misc]

    async def _run_agent_loop(
        self, sampling_params: Any, trajectory: Any, *args: Any, **kwargs: Any
    ) -> Any:
        validation = bool(trajectory["validate"])
        rollout = self.config.actor_rollout_ref.rollout
        usual = int(rollout.val_kwargs.n) if validation else training_rollouts(self.config)
        n = _siblings.get() or usual
        step = trajectory.get("step")
        # Set in a separate task, so that no other task sees it.
        mine = _Rollout(validation, n, None if step is None or int(step) < 0 else int(step))
        _rollout.set(mine)
        try:
            return await super()._run_agent_loop(  # type: ignore[misc]
                sampling_params, trajectory, *args, **kwargs
            )
        finally:
            # The rollout failed, was cancelled or returned nothing: its siblings must not wait for
            # it.
            if not mine.scored and not validation and kwargs.get("uid") is not None:
                self._collector().absent(str(kwargs["uid"]), mine.step, n)

    async def _compute_score(self, outputs: Sequence[Any], kwargs: Any) -> None:
        final, mine = outputs[-1], _rollout.get(None)
        if self.reward_loop_worker_handles is None or mine is None:
            # The reward comes later, from `compute_rm_score`, so nothing is known here.
            if mine is not None:
                mine.scored = True
            await super()._compute_score(outputs, kwargs)  # type: ignore[misc]
            return
        # verl lets an agent loop's own reward bypass every reward manager, so it is removed.
        given, final.reward_score = final.reward_score, None
        hook_data = HookData(
            siblings=mine.siblings,
            validation=mine.validation,
            masks=tuple(tuple(o.response_mask) for o in outputs),
            log_probs=tuple(
                None if o.response_logprobs is None else tuple(o.response_logprobs) for o in outputs
            ),
            unusable=mine.unusable,
            score=given,
            step=mine.step,
        )
        await super()._compute_score(outputs, {**kwargs, HOOK_DATA: hook_data})  # type: ignore[misc]
        info = final.extra_fields.get("reward_extra_info") or {}
        if "guard_left_out" not in info:
            raise FrameworkError(
                "verl: the agent-loop hook is in place, but the reward was not guarded; choose "
                "GuardedRewardManager as the reward manager"
            )
        mine.scored = True
        # In bypass mode verl raises on a micro-batch without trainable tokens, so a left-out
        # completion keeps its mask and gets its group's mean as its score.
        mine.left_out = bool(info["guard_left_out"]) and not bypasses(self.config)
        if mine.left_out:
            for output in outputs:
                output.response_mask = [0] * len(output.response_mask)

    async def _agent_loop_postprocess(self, output: Any, *args: Any, **kwargs: Any) -> Any:
        """Zero invalid log-probs before verl makes tensors of them, because they would be NaN in
        its corrections. Afterwards, zero the padded mask of a left-out rollout for the trainers
        before v1, which build it before the score is known."""
        mine = _rollout.get(None)
        for one in output if isinstance(output, list) else [output]:
            if not _usable(one) and mine is not None:
                mine.unusable = True
                one.response_logprobs = [0.0] * len(one.response_ids)
        post = super()._agent_loop_postprocess  # type: ignore[misc]
        padded = await post(output, *args, **kwargs)
        if padded is not None and mine is not None and mine.left_out:
            padded.response_mask = padded.response_mask * 0
        return padded

    def _collector(self) -> CollectorHandle:
        if self._handle is None:
            self._handle = CollectorHandle(Settings.of(self.config))
        return self._handle


def _usable(output: Any) -> bool:
    """Whether an output's log-probs are valid numbers, at most one per token."""
    given = getattr(output, "response_logprobs", None)
    if given is None:
        return True
    count = read(len, given)
    fits = isinstance(count, int) and count <= len(output.response_ids)
    return fits and log_probs_from(given, count) is not None


class GuardedManager:
    """Mixin that makes verl's ``AgentLoopManager`` and its subclasses use guarded workers.

    Raises:
        FrameworkError: verl would not call the guard with this configuration.
        ConfigError: the guard's file is invalid.
    """

    agent_loop_workers_class: Any
    guarded_worker: str

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        settings = Settings.of(config)
        policy = settings.policy()
        if not settings.bypass and (warning := empty_batch_warning(config, policy)):
            logger.warning(warning)
        manager = config.reward.reward_manager
        if manager.source == "register" and manager.name != "grpo_guard":
            raise FrameworkError(
                f"verl: the agent-loop hook needs GuardedRewardManager, but the reward manager is "
                f"{manager.name!r}; see {page('verl')}"
            )
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        import ray

        # By now, verl has set its own class.
        self.agent_loop_workers_class = ray.remote(_made(self.guarded_worker))


_MADE = (
    "GuardedAgentLoopManager",
    "GuardedAgentLoopManagerV0",
    "GuardedAgentLoopWorker",
    "GuardedAgentLoopWorkerV0",
)


@cache
def _made(name: str) -> type:
    """Build, on first use, the guarded subclass of a class of the installed verl."""
    bases: tuple[type, type]
    if name.endswith("V0"):
        from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker

        bases = AgentLoopManager, AgentLoopWorker
    else:
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

        # The worker is already a Ray actor; only the class behind it can be subclassed.
        bases = AgentLoopManagerTQ, AgentLoopWorkerTQ.__ray_metadata__.modified_class
    if "Worker" in name:
        return type(name, (GuardedRollouts, bases[1]), {"__module__": __name__})
    more = {"__module__": __name__, "guarded_worker": name.replace("Manager", "Worker")}
    return type(name, (GuardedManager, bases[0]), more)


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name)
