"""TRL: a trainer that guards rewards before the groups' baselines (docs/trl.md).

Compared with decorated reward functions, a guarded trainer adds a single veto over all functions,
including reward models; the trainer's own scoring pass for the verifiers; the prompt's tokens as
the trainer has them; and the masking of tokens from the loss, individually or together with the
whole completion.

`GuardedGRPOTrainer` and `GuardedRLOOTrainer` are built from the installed trl on first use. For any
other subclass, list the mixin before it: ``class Mine(GuardedTrainer, TheirTrainer)``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from grpo_guard.adapters.flagged_tokens import Span, flagged_tokens, require_maskable
from grpo_guard.adapters.received import Row
from grpo_guard.adapters.releases import require_release
from grpo_guard.adapters.reward_function import RewardFunction, fitted, is_guarded
from grpo_guard.adapters.trl.batch import MASK, counts_slots, rows_from, tokenizer_of
from grpo_guard.adapters.trl.correction import (
    LogProbs,
    corrects_sequences,
    masked_sequences,
    sampling_of,
)
from grpo_guard.adapters.trl.forward import ReusesForward, reuse_of
from grpo_guard.adapters.trl.grading import surviving, without_failed
from grpo_guard.adapters.trl.peers import PeerRollouts, refuse_what_peers_could_use
from grpo_guard.adapters.trl.review import BatchReviewer
from grpo_guard.adapters.trl.reward import log_review
from grpo_guard.adapters.trl.trainer_checks import (
    check_room,
    check_sampler,
    is_rloo,
    refuse_leaks,
    require_hooks,
    warn_of_half_precision,
)
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.settlement import Ruling, refuse_abstentions, ruling_of, settle


class GuardedTrainer(ReusesForward):
    """Mixin that guards a trainer's rewards; list it before `GRPOTrainer` or `RLOOTrainer` in a
    class's bases.

    The veto is written into the gathered rewards, [rows of all ranks, functions]: NaN in every
    column removes a completion from its group, and 0 is the paper's r_task * r_guard. A removed
    completion is excluded from the loss as well, so that no KL term trains on it; under RLOO, whose
    loss has one ratio per completion, only the advantage is 0.

    Args:
        guard: The guard to apply. Pass the reward functions themselves unguarded. With
            ``failures``, a completion on which any reward function fails leaves its group.
        mask_spans: Whether a rejected completion whose verdict points to specific tokens keeps its
            reward and loses only those tokens. Any poison that no finding points to is then trained
            on: see `flagged_tokens`.
        leave_out_masked: Whether to also remove sequences that TRL's importance-sampling correction
            masks from their group's baseline; otherwise they stay in it, as without a guard.
        forward_reuse: The scorer that the guard's verifiers use. If None, verifiers that score the
            very object being trained reuse the trainer's pass, if there is one before the rewards;
            if False, they run their own.

    Raises:
        FrameworkError: the installed trl is older than 1.6; the trainer is of a different kind, or
            would undo the veto or trust peers' claims; a reward function is guarded already;
            ``mask_spans`` is set for a trainer without token masks or with ``on_long="scale"``; or
            a guard that only watches is asked to remove something.
        TypeError: ``guard`` is not a `Guard`.
    """

    def __init__(
        self,
        *args: Any,
        guard: Guard,
        mask_spans: bool = False,
        leave_out_masked: bool = False,
        **kwargs: Any,
    ) -> None:
        require_release("trl")
        require_hooks(type(self), GuardedTrainer)
        if not isinstance(guard, Guard):
            raise TypeError(f"guard: expected a Guard(verifier, policy=...), got {guard!r:.80}")
        guard = fitted(guard, "TRL's guarded trainer", {})
        self.guard, self.mask_spans, self.leave_out_masked = guard, mask_spans, leave_out_masked
        self._prompt_ids: Sequence[Any] = ()
        self._masks: Sequence[Any] | None = None
        self._sampling: LogProbs | None = None
        self._taken_out: list[tuple[Span, ...]] = []
        self._evaluating = False
        # Check before TRL starts an engine, which takes minutes.
        if isinstance(kwargs.get("rollout_func"), PeerRollouts):
            settings = kwargs.get("args", args[2] if len(args) > 2 else None)
            refuse_what_peers_could_use(settings, kwargs.get("tools"))
        super().__init__(*args, **kwargs)
        if kwargs.get("forward_reuse") is None:
            self.forward_reuse = reuse_of(guard.verifier, self.model)  # type: ignore[attr-defined]
        refuse_leaks(self, guard.policy)
        check_sampler(self, guard)
        warn_of_half_precision(self)
        self._take_reward_functions()
        if mask_spans and is_rloo(self):
            raise FrameworkError(
                f"mask_spans: {type(self).__name__} has one ratio per completion and no mask of "
                "tokens; use GRPOTrainer, or mask_spans=False"
            )
        if mask_spans:
            require_maskable(guard.policy, type(self).__name__)
        if leave_out_masked and guard.policy.watches:
            raise FrameworkError(
                'leave_out_masked removes sequences from the baseline, and on_reject="keep" '
                "changes nothing; choose one of the two"
            )

    def _take_reward_functions(self) -> None:
        """Refuse reward functions that are guarded already, and, if the guard handles failures,
        wrap the others so that they can safely fail or hang."""
        trainer: Any = self
        for function in trainer.reward_funcs:
            if is_guarded(function):
                raise FrameworkError(
                    f"reward function {function.__name__!r} is already guarded; give a guarded "
                    "trainer the function itself"
                )
        if self.guard.failures is not None:
            trainer.reward_funcs = [
                f
                if isinstance(f, torch.nn.Module)
                else surviving(RewardFunction.inspect(f, self.guard))
                for f in trainer.reward_funcs
            ]

    def _generate(self, prompts: Any) -> Any:
        """Generate completions, and keep the prompts' tokens, the mask of tool results and the
        sampler's log-probs. In every release the prompts' tokens are the first return value and the
        completions' tokens the second; the mask and the log-probs are recognised by their form."""
        generated = super()._generate(prompts)  # type: ignore[misc]
        self._prompt_ids = generated[0]
        self._masks, self._sampling = None, sampling_of(generated)
        if (masks := mask_of(generated)) is not None:
            self._masks = list(masks)
            for i, ids in enumerate(generated[1]):
                # A mask of a different length is malformed, and could be wider than the batch.
                if len(masks[i]) != len(ids):
                    masks[i] = [0] * len(ids)
        return generated

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """Skip the guard in evaluations: they train nothing, and must not use up any slot or
        evidence.

        Evaluations are detected by this call rather than by the model's evaluation mode: verifiers
        that score tokens set that mode while they work, so a late verifier would switch the guard
        off.
        """
        self._evaluating = True
        try:
            return super().prediction_step(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._evaluating = False

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        check_sampler(self, self.guard)
        check_room(self, self.guard, prompts)
        rewards: Tensor = super()._calculate_rewards(  # type: ignore[misc]
            inputs, prompts, completions, completion_ids_list
        )
        if self.guard.failures is not None:
            rewards = without_failed(rewards)
        if self._evaluating:
            return rewards
        given = {
            **{key: [row.get(key) for row in inputs] for key in inputs[0]},
            "prompt_ids": self._prompt_ids,
            MASK: self._masks,
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids_list,
            "trainer_state": self.state,  # type: ignore[attr-defined]
        }
        batch = rows_from(given, tokenizer=tokenizer_of(self), trainer=self)
        review = BatchReviewer(self.guard, counts_slots(given)).review(batch)
        log_review(review, self._log_metric, self._log_completion_extra)  # type: ignore[attr-defined]
        return self._settled(rewards, review, batch)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._taken_out = []
        output = super()._generate_and_score_completions(inputs)
        if "num_items_in_batch" not in output:  # RLOO: nothing is counted per token
            return output
        keep = torch.ones_like(output["completion_ids"], dtype=torch.long)
        for row, spans in enumerate(self._taken_out):
            for start, end in spans:
                keep[row, start:end] = 0
        return take_out(output, keep, self.accelerator.gather)  # type: ignore[attr-defined]

    def _settled(self, rewards: Tensor, review: Review, batch: Sequence[Row]) -> Tensor:
        """Return the rewards of all ranks after the veto, [rows, functions], with NaN for none, and
        record which tokens are removed from this rank's loss. The ranks exchange rulings, and each
        settles all rows, so that all get the same rewards."""
        spans = self._masked(review, batch)
        own = [
            # Completions that lose tokens keep their reward; repaired rows are not trained on.
            Ruling.BARRED if row.was_repaired else Ruling.ACCEPTED if of_row else ruling_of(verdict)
            for verdict, row, of_row in zip(review.verdicts, batch, spans, strict=True)
        ]
        factors = review.length_factors or [1.0] * len(batch)
        masked = self._masked_by_trl(len(batch))
        exchanged = torch.tensor(
            [own, factors, masked], dtype=torch.float32, device=rewards.device
        ).T
        gathered = self.accelerator.gather(exchanged.contiguous())  # type: ignore[attr-defined]
        rulings, all_factors, all_masked = gathered.T.tolist()
        refuse_abstentions(self.guard.policy, review.verdicts)
        group: int = self.num_generations  # type: ignore[attr-defined]
        rows = [
            [None if v != v or (out and self.leave_out_masked) else v for v in row]
            for row, out in zip(rewards.tolist(), all_masked, strict=True)
        ]
        settled = settle(
            rows,
            [Ruling(int(ruling)) for ruling in rulings],
            self.guard.policy,
            weights=self.reward_weights.tolist(),  # type: ignore[attr-defined]
            groups=[i // group for i in range(len(rows))],
            length_factors=all_factors,
        )
        start = self.accelerator.process_index * len(batch)  # type: ignore[attr-defined]
        # The filler of an empty slot has a reward but must not be trained on.
        self._taken_out = [
            ((0, len(row.completion.completion_ids or ())),)
            if not settled.kept[start + i] or row.was_repaired
            else spans[i]
            for i, row in enumerate(batch)
        ]
        if self.guard.policy.watches:
            return rewards  # the same tensor
        kept = [[float("nan") if v is None else v for v in row] for row in settled.rewards]
        return torch.tensor(kept, dtype=rewards.dtype, device=rewards.device)

    def _masked_by_trl(self, count: int) -> list[bool]:
        """Whether TRL masks each row of this rank as a whole sequence, [B]; logs the share."""
        if not corrects_sequences(self):
            return [False] * count
        masked = masked_sequences(self, self._policy_logps, self._sampling, self._masks, count)
        self._log_metric("guard/masked_sequences", sum(masked) / max(1, count))  # type: ignore[attr-defined]
        return masked

    def _masked(self, review: Review, batch: Sequence[Row]) -> list[tuple[Span, ...]]:
        """The tokens that each row's rejection is based on, [B], which are removed from the loss
        instead of the whole completion."""
        if not self.mask_spans:
            return [()] * len(batch)
        lengths = [len(row.completion.completion_ids or ()) for row in batch]
        spans = [flagged_tokens(v, n) for v, n in zip(review.verdicts, lengths, strict=True)]
        flagged = sum(len({t for a, b in of_row for t in range(a, b)}) for of_row in spans)
        share = flagged / max(1, sum(lengths))
        self._log_metric("guard/masked_tokens", share)  # type: ignore[attr-defined]
        return spans


@cache
def _trainer(name: str, base: str) -> type:
    import trl

    require_release("trl")
    return type(name, (GuardedTrainer, getattr(trl, base)), {"__module__": __name__})


def __getattr__(name: str) -> Any:
    bases = {"GuardedGRPOTrainer": "GRPOTrainer", "GuardedRLOOTrainer": "RLOOTrainer"}
    if name not in bases:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _trainer(name, bases[name])


def mask_of(generated: Sequence[Any]) -> list[Sequence[int]] | None:
    """Find TRL's training mask, 1 for the model's tokens, in the result of `_generate`; None if
    there is none. If a `rollout_func` passes on a sender's claim, a row's mask can be longer or
    shorter than its ids: that row is malformed, but the other rows' masks are valid. Raises
    FrameworkError for a mask that the installed trl would ignore, and so train on tool results."""
    ids = generated[1]
    for item in generated[2:]:
        if isinstance(item, Mapping) and "env_mask" in item:
            raise FrameworkError(
                "env_mask: this release of trl trains on what rollout_func masks; upgrade trl"
            )
        form = isinstance(item, list) and len(item) == len(ids) and all(map(_is_mask, item))
        if form and (any(item) or not any(ids)):
            return item  # type: ignore[no-any-return]
    return None


def _is_mask(mask: Any) -> bool:
    form = isinstance(mask, list | tuple)
    return form and all(type(m) is int and m in (0, 1) for m in mask)


def take_out(
    output: dict[str, Any], keep: Tensor, gather: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """Remove the flagged tokens (0 in ``keep``, [B, C]) from a batch of GRPOTrainer; every rank
    must call this function. `tool_mask` removes tokens from the loss but not from attention. The
    losses dapo, cispo and vespo divide by `num_items_in_batch`, the number of tokens on all ranks;
    this number is corrected because TRL has already counted them."""
    before = output["completion_mask"]
    if "tool_mask" in output:
        before = before * output["tool_mask"]
    removed = gather((before * (1 - keep)).sum().reshape(1)).sum()
    if not removed:
        return output
    # At least 1: releases up to 1.6 divide by it directly, and all tokens could be flagged.
    items = (output["num_items_in_batch"] - removed).clamp(min=1)
    mask = output["tool_mask"] * keep if "tool_mask" in output else keep
    return {**output, "tool_mask": mask, "num_items_in_batch": items}
