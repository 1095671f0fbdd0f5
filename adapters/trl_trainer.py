"""TRL: a trainer whose rewards are guarded before the groups' baselines.

    scorer = ForwardReuse(model)
    the_guard = Guard(LogProbBoundVerifier(tokenizer=tokenizer, scorer=scorer, sampling=...))
    GuardedGRPOTrainer(model, [correct, well_formed], ..., guard=the_guard, forward_reuse=scorer)

What it adds to decorated reward functions: one veto over all functions, reward models among them;
the trainer's own forward for the verifiers; the prompt's tokens as the trainer has them; tokens
taken out of the loss, alone or with the whole completion.

`GuardedGRPOTrainer` and `GuardedRLOOTrainer` are made of the installed trl when first asked for.
For another subclass put the mixin before it: ``class Mine(GuardedTrainer, TheirTrainer)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from grpo_guard.adapters.flagged_tokens import Span, flagged_tokens
from grpo_guard.adapters.received import MALFORMED
from grpo_guard.adapters.trl import log_review
from grpo_guard.adapters.trl_batch import completions_from, counts_slots, tokenizer_of
from grpo_guard.adapters.trl_forward import ReusesForward
from grpo_guard.adapters.trl_leaks import is_rloo, refuse_leaks, require_hooks
from grpo_guard.adapters.trl_masks import keep_mask, take_out
from grpo_guard.adapters.trl_review import BatchReviewer
from grpo_guard.adapters.trl_settle import losing, lowered, settled_rewards
from grpo_guard.adapters.trl_versions import require_trl
from grpo_guard.completion import Completion
from grpo_guard.framework import FrameworkError
from grpo_guard.guard import Guard, Review
from grpo_guard.losses import may_lose
from grpo_guard.verdict import accept


class GuardedTrainer(ReusesForward):
    """Mixin for `GRPOTrainer` and `RLOOTrainer`; stands before it among the bases.

    The veto is written into the gathered rewards, [rows of all ranks, functions]: NaN in every
    column leaves a completion out of its group, 0 is the paper's r_task * r_guard. What is left
    out is in no loss either, so that no KL term trains on it; of RLOO, whose loss has one ratio a
    completion, only the advantage is 0.

    Args:
        guard: Verifier, policy and ledger. The reward functions are given unguarded.
        mask_spans: A rejected completion whose verdict rests on tokens keeps its reward and loses
            these tokens. Poison that no finding names is then trained on: see `flagged_tokens`.
        forward_reuse: The scorer that the guard's verifiers use; None = they score by themselves.

    Raises:
        FrameworkError: the installed trl is older than 1.6, the trainer is of another kind or would
            undo the veto, a reward function is guarded already, or ``mask_spans`` is asked of a
            trainer without token masks or beside ``on_long="scale"``.
        TypeError: ``guard`` is no `Guard`.
    """

    def __init__(self, *args: Any, guard: Guard, mask_spans: bool = False, **kwargs: Any) -> None:
        require_trl()
        require_hooks(type(self), GuardedTrainer)
        if not isinstance(guard, Guard):
            raise TypeError(f"guard: expected a Guard(verifier, policy=...), got {guard!r:.80}")
        self.guard, self.mask_spans = guard, mask_spans
        self._prompt_ids: Sequence[Any] = ()
        self._taken_out: list[tuple[Span, ...]] = []
        self._evaluating = False
        super().__init__(*args, **kwargs)
        refuse_leaks(self, guard.policy)
        for function in self.reward_funcs:  # type: ignore[attr-defined]
            if isinstance(getattr(function, "guard", None), Guard):
                raise FrameworkError(
                    f"reward function {function.__name__!r} is guarded already; give a guarded "
                    "trainer the function itself"
                )
        if mask_spans and is_rloo(self):
            raise FrameworkError(
                f"mask_spans: {type(self).__name__} has one ratio a completion and no mask of "
                "tokens; use GRPOTrainer, or mask_spans=False"
            )
        if mask_spans and guard.policy.on_long == "scale":
            raise FrameworkError(
                'mask_spans: on_long="scale" has no measure for what is rejected, and a masked '
                "completion would keep its reward at any length; choose one of the two"
            )

    def _generate(self, prompts: Any) -> Any:
        """The prompts' tokens are kept; of all that releases return they have stayed the first."""
        generated = super()._generate(prompts)  # type: ignore[misc]
        self._prompt_ids = generated[0]
        return generated

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation trains nothing: it is not judged, no ledger hears of it, no slot is spent.

        Told from this call, not from the model being in evaluation mode: verifiers that score
        tokens put it there while they work, and a late one would switch the guard off.
        """
        self._evaluating = True
        try:
            return super().prediction_step(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._evaluating = False

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(  # type: ignore[misc]
            inputs, prompts, completions, completion_ids_list
        )
        if self._evaluating:
            return rewards
        given = {
            **{key: [row.get(key) for row in inputs] for key in inputs[0]},
            "prompt_ids": self._prompt_ids,
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids_list,
            "trainer_state": self.state,  # type: ignore[attr-defined]
        }
        batch = completions_from(given, tokenizer=tokenizer_of(self))
        review = BatchReviewer(self.guard, counts_slots(given)).review(batch)
        log_review(review, self._log_metric, self._log_completion_extra)  # type: ignore[attr-defined]
        start = self.accelerator.process_index * len(prompts)  # type: ignore[attr-defined]
        own, marks = self._vetoed(rewards[start : start + len(prompts)], review, batch)
        gather = self.accelerator.gather  # type: ignore[attr-defined]
        weights = self.reward_weights.to(own.device)  # type: ignore[attr-defined]
        size: int = self.num_generations  # type: ignore[attr-defined]
        kept, marks = gather(own), gather(marks)
        if self.guard.policy.on_reject == "no_gain":
            back = losing(kept, rewards, marks[:, 1:], weights, size)
            for i, stays in enumerate(back[start : start + len(prompts)].tolist()):
                if stays:
                    self._taken_out[i] = ()
            kept = torch.where(back[:, None], rewards, kept)
        return lowered(kept, marks[:, :1], weights, size)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._taken_out = []
        output = super()._generate_and_score_completions(inputs)
        if "num_items_in_batch" not in output:  # RLOO: nothing is counted in tokens
            return output
        keep = keep_mask(
            tuple(output["completion_ids"].shape), self._taken_out, output["completion_ids"].device
        )
        return take_out(output, keep, self.accelerator.gather)  # type: ignore[attr-defined]

    def _vetoed(
        self, rewards: Tensor, review: Review, batch: Sequence[Completion]
    ) -> tuple[Tensor, Tensor]:
        """This rank's rewards after the veto, [B, functions], and two marks of each row, [B, 2].

        The marks: it has the reward of "zero"; it was rejected for what was sent, so that it may
        lose. Notes what is to leave the loss.
        """
        lengths = [len(c.completion_ids or ()) for c in batch]
        spans: list[tuple[Span, ...]] = [()] * len(batch)
        if self.mask_spans:
            spans = [flagged_tokens(v, n) for v, n in zip(review.verdicts, lengths, strict=True)]
            flagged = sum(len({t for a, b in of_row for t in range(a, b)}) for of_row in spans)
            share = flagged / max(1, sum(lengths))
            self._log_metric("guard/masked_tokens", share)  # type: ignore[attr-defined]
        verdicts = [
            accept(verdict.verifier) if of_row else verdict
            for verdict, of_row in zip(review.verdicts, spans, strict=True)
        ]
        weights = self.reward_weights.tolist()  # type: ignore[attr-defined]
        settled = settled_rewards(self.guard, rewards, replace(review, verdicts=verdicts), weights)
        left_out = settled.isnan().all(dim=1) & ~rewards.isnan().all(dim=1)
        # What fills an empty slot is nobody's: it has its reward, and trains nothing.
        whole = [
            out or MALFORMED in c.metadata for out, c in zip(left_out.tolist(), batch, strict=True)
        ]
        self._taken_out = [
            ((0, length),) if out else of_row
            for out, of_row, length in zip(whole, spans, lengths, strict=True)
        ]
        marks = [
            [self.guard.policy.zeroes(verdict), may_lose(verdict) and MALFORMED not in c.metadata]
            for verdict, c in zip(verdicts, batch, strict=True)
        ]
        return settled, torch.tensor(marks, device=settled.device)


@cache
def _trainer(name: str, base: str) -> type:
    import trl

    require_trl()
    return type(name, (GuardedTrainer, getattr(trl, base)), {"__module__": __name__})


def __getattr__(name: str) -> Any:
    bases = {"GuardedGRPOTrainer": "GRPOTrainer", "GuardedRLOOTrainer": "RLOOTrainer"}
    if name not in bases:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _trainer(name, bases[name])
