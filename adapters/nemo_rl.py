"""NeMo-RL: an advantage estimator that is given only what may be compared.

    class Guarded(GuardedAdvantages, GRPOAdvantageEstimator):
        guard = presets.failures_only()

    nemo_rl.algorithms.grpo.GRPOAdvantageEstimator = Guarded  # before grpo_train

The mixin stands before an estimator, whose own formula runs over what stays: its leave-one-out
baseline and its deviation are those of the smaller group. What is left out has advantage 0, and
its sample mask is emptied in place, so that no KL term trains on it.

A sample that NeMo-RL itself masks (``overlong_filtering``, an environment's ``mask_sample``) stays
in NeMo-RL's baseline; under a guard with ``failures`` it leaves it.

Not reached: dynamic sampling, which looks at rewards before; GDPO's parts of a reward, where only
leaving out works; and the single controller, which gives its estimator no messages, so that it is
refused. Written against NeMo-RL at 7ea279abfbeb (22 August 2026):
algorithms/advantage_estimator.py, algorithms/grpo.py, distributed/batched_data_dict.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from grpo_guard.adapters.received import Row, claimed, read, received
from grpo_guard.adapters.reward_function import (
    chosen_policy,
    require_ids_read,
    without_lengths,
)
from grpo_guard.adapters.sequences import review_turns
from grpo_guard.framework import FrameworkError
from grpo_guard.graders import finite_or_none
from grpo_guard.guard import Guard
from grpo_guard.settlement import refuse_abstentions

_CANNOT: Final = without_lengths("NeMo-RL")


class GuardedAdvantages:
    """Mixin before an estimator; ``guard`` is set in the class.

    Raises:
        FrameworkError: the policy asks for what NeMo-RL cannot do, the guard has no tokenizer for
            the ids that train, or there are no messages.
        AbstainError: as the policy has it; it stops the run.
    """

    guard: ClassVar[Guard]
    last_metrics: Mapping[str, float]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "guard" in vars(cls):
            require_ids_read(cls.guard, "NeMo-RL")
            cls.guard = cls.guard.under(chosen_policy(cls.guard.policy, "NeMo-RL", _CANNOT))

    def compute_advantage(
        self, prompt_ids: Tensor, rewards: Tensor, mask: Tensor, **more: Any
    ) -> Tensor:
        """NeMo-RL's hook: advantages, [B, T].

        Args:
            prompt_ids: Whose rows are compared, [B, P].
            rewards: Of one number each, [B].
            mask: 1 where a token trains, [B, T].
            more: ``repeated_batch`` with the message logs, and what the estimator needs.
        """
        batch = more.get("repeated_batch")
        if batch is None or "message_log" not in batch:
            raise FrameworkError(
                "NeMo-RL: expected repeated_batch with message_log, got none; use the trainer of "
                "algorithms/grpo.py"
            )
        size = len(rewards)
        review = review_turns(
            self.guard, [(i, row) for i in range(size) for row in _rows(batch, i)]
        )
        self.last_metrics = review.metrics
        if self.guard.policy.watches:
            refuse_abstentions(self.guard.policy, review.verdicts)
            own: Tensor = super().compute_advantage(prompt_ids, rewards, mask, **more)  # type: ignore[misc]
            return own
        given = finite_or_none(rewards.tolist())
        if self.guard.failures is not None:
            trains = mask.bool().any(dim=-1).tolist()
            given = [r if t else None for r, t in zip(given, trains, strict=True)]
        groups: list[Any] = [tuple(row) for row in prompt_ids.tolist()]
        kept = self.guard.settle(given, review.regrouped(groups))
        stays = [i for i, reward in enumerate(kept) if reward is not None]
        out = [i for i, reward in enumerate(kept) if reward is None]
        advantages = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        if stays:
            own = super().compute_advantage(  # type: ignore[misc]
                prompt_ids[stays],
                rewards.new_tensor([kept[i] for i in stays]),
                mask[stays],
                **{name: _selected(value, stays, size) for name, value in more.items()},
            )
            advantages[stays] = own.to(advantages.dtype)
        for sample_mask in (batch.get("loss_multiplier"), more.get("sample_mask")):
            if out and isinstance(sample_mask, Tensor):
                sample_mask[out] = 0
        return advantages


def _selected(value: Any, stays: list[int], size: int) -> Any:
    if isinstance(value, Tensor) and value.ndim and len(value) == size:
        return value[stays]
    select = getattr(value, "select_indices", None)
    return value if select is None else select(stays)


def _rows(batch: Any, i: int) -> Iterator[Row]:
    """One completion per message that the policy wrote, behind all the messages before it."""
    log, extra = batch["message_log"][i], _of_row(batch, "extra_env_info", i)
    cut = bool(_of_row(batch, "truncated", i))
    turns = [j for j, message in enumerate(log) if _drawn(message)]
    claims = {
        "node": claimed(extra, "node"),
        "reference": claimed(extra, "ground_truth"),
        "task": _of_row(batch, "task_name", i),
        "slot": i,
    }
    if not turns:
        yield received([_plain(message) for message in log], "", **claims)
    for j in turns:
        before = [token for message in log[:j] for token in read(_ids, message) or ()]
        yield received(
            [_plain(message) for message in log[:j]],
            log[j]["content"],
            prompt_ids=before,
            completion_ids=read(_ids, log[j]),
            sampler_logprobs=read(lambda at=j: log[at]["generation_logprobs"].tolist()),
            finish_reason="length" if cut and j == turns[-1] else None,
            # What a peer said in earlier turns is its own word.
            prompt_trusted=claims.get("node") is None or j == turns[0],
            **claims,
        )


def _drawn(message: Mapping[str, Any]) -> bool:
    """By NeMo-RL's own mark, or before it is set by the log-probs, which only its engine gives."""
    marked = message.get("token_loss_mask")
    if isinstance(marked, Tensor):
        return bool(marked.any())
    return message.get("role") == "assistant" and "generation_logprobs" in message


def _ids(message: Mapping[str, Any]) -> list[int]:
    ids: list[int] = message["token_ids"].tolist()
    return ids


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": str(message.get("role")), "content": message.get("content")}


def _of_row(batch: Any, name: str, i: int) -> Any:
    return batch[name][i] if name in batch else None
