"""TRL: reuse the trainer's scoring forward in the verifiers, which score one row to check it.

The guarded trainers do this by themselves for verifiers that score the object that is trained
(`reuse_of`). With decorated reward functions, give the verifier ``scorer=ForwardReuse(model)`` and
the trainer, ``class Trainer(ReusesForward, GRPOTrainer)``, the same object as ``forward_reuse=``.

RLOO always runs the policy over the completions before the rewards; GRPO only if samples may come
from older weights: ``num_iterations > 1``, ``steps_per_generation`` beyond the accumulation steps,
or vLLM with importance sampling. Otherwise there is nothing to reuse, and the verifier runs its own
pass.
"""

from __future__ import annotations

from typing import Any, Literal

from grpo_guard.adapters.trl.trainer_checks import is_rloo
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.logprob.scorers.reuse import ForwardReuse
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.verifier import LogProbVerifier


class ReusesForward:
    """Mixin for `GRPOTrainer` and `RLOOTrainer`; goes before them among the bases.

    Keeps only a batch's first pass, and only if TRL's own condition says that it is the policy's:
    with PEFT, TRL runs the reference through the very same model with its adapters off, and
    completions would be judged by the reference. The pass is dropped with the batch.

    Args:
        forward_reuse: The scorer that the verifiers use; None or False = nothing is kept.
    """

    forward_reuse: ForwardReuse | None

    _policy_pass_ahead = False
    _policy_logps: Any = None  # from the policy's pass over the current batch

    def __init__(
        self, *args: Any, forward_reuse: ForwardReuse | Literal[False] | None = None, **kwargs: Any
    ) -> None:
        self.forward_reuse = forward_reuse or None
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._policy_pass_ahead, self._policy_logps = _runs_policy_first(self), None
        try:
            return super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        finally:
            self._policy_pass_ahead, self._policy_logps = False, None
            # The weights may now change without torch counting it: an update through `.data`
            # would make the previous step's states look fresh.
            if self.forward_reuse is not None:
                self.forward_reuse.forget()

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        """Keep the policy's pass before the rewards, but not the reference's and the loss's.

        The result is passed on unchanged: pairs, triples, or Unsloth's pair of Nones, for which the
        body ran no pass and nothing is kept.
        """
        forward = super()._get_per_token_logps_and_entropies  # type: ignore[misc]
        first, self._policy_pass_ahead = self._policy_pass_ahead, False
        kept = self.forward_reuse
        first = first and model is self.model  # type: ignore[attr-defined]
        if kept is None or not first:
            found = forward(model, input_ids, attention_mask, logits_to_keep, *args, **kw)
        else:
            with kept.capture(input_ids, attention_mask, int(logits_to_keep)):
                found = forward(model, input_ids, attention_mask, logits_to_keep, *args, **kw)
        if first:
            self._policy_logps = found[0]
        return found


def reuse_of(verifier: CompletionVerifier, model: Any) -> ForwardReuse | None:
    """Let the verifiers that score ``model``, the object that is trained, reuse a trainer's passes
    over it: their scorers are replaced by one that reuses, with the options of the first, and what
    it computes is the same. A copy of the model has other weights after the first update. Returns
    the scorer; None = no verifier scores this object."""
    reuse: ForwardReuse | None = None
    for inner in inner_verifiers(verifier):
        scorer = getattr(inner, "scorer", None)
        if not isinstance(inner, LogProbVerifier) or getattr(scorer, "model", None) is not model:
            continue
        if isinstance(scorer, ForwardReuse):
            reuse = reuse or scorer
        elif type(scorer) is TransformersScorer:  # a subclass may compute something else
            reuse = reuse or ForwardReuse.over(scorer)
            inner.scorer = reuse
    return reuse


def _runs_policy_first(trainer: Any) -> bool:
    """TRL's condition (1.16) for a pass of the policy before the rewards. In a release that
    expresses it differently, nothing is captured, which costs a pass but is never wrong."""
    if is_rloo(trainer):
        return True
    try:
        every = trainer.args.steps_per_generation * trainer.num_iterations
        misaligned = trainer.args.gradient_accumulation_steps % every != 0
        corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    except (AttributeError, TypeError, ZeroDivisionError):
        return False
    return bool(misaligned or corrected)
