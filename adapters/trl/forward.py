"""TRL: reuse the trainer's scoring pass in the verifiers, which check it by scoring a single row.

The guarded trainers do this automatically for verifiers that score the very model object being
trained (`reuse_of`). With decorated reward functions, give the verifier
``scorer=ForwardReuse(model)``, and pass the same object as ``forward_reuse=`` to the trainer,
``class Trainer(ReusesForward, GRPOTrainer)``.

RLOO always runs the policy over the completions before the rewards; GRPO does so only if samples
can come from older weights: ``num_iterations > 1``, ``steps_per_generation`` beyond the
accumulation steps, or vLLM with importance sampling. Otherwise there is nothing to reuse, and the
verifier runs its own pass.
"""

from typing import Any, Literal

from grpo_guard.adapters.trl.trainer_checks import is_rloo
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.logprob.scorers.reuse import ForwardReuse
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.verifier import LogProbVerifier


class ReusesForward:
    """Mixin that keeps a trainer's scoring pass for verifiers; list it before `GRPOTrainer` or
    `RLOOTrainer` in a class's bases.

    Only a batch's first pass is kept, and only if TRL's own condition says that it is a pass of the
    policy: with PEFT, TRL also uses the same model object, with its adapters off, as the reference
    model, and completions would otherwise be judged by the reference. The pass is discarded along
    with the batch.

    Args:
        forward_reuse: The scorer that the verifiers use; None or False to keep no passes.
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
            # The weights may now change without torch noticing: after an update through `.data`,
            # the previous step's states would look fresh.
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
        """Keep the policy's pass before the rewards, but no passes for the reference or the loss.
        The result is passed on unchanged: a pair, a triple, or Unsloth's pair of Nones, in which
        case no pass was run and nothing is kept."""
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
    """Let verifiers that score ``model``, the object being trained, reuse a trainer's passes over
    it. Their scorers are replaced with a single `ForwardReuse` that takes over the first scorer's
    options and computes the same results. Verifiers that score a copy of the model are left alone,
    because the copy's weights differ after the first update. Returns the new scorer, or None if no
    verifier scores this object."""
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
    """Whether TRL runs the policy over the completions before the rewards, by the condition in TRL
    1.16. In a release with a different condition, nothing might be captured, which costs a pass but
    is never wrong."""
    if is_rloo(trainer):
        return True
    try:
        every = trainer.args.steps_per_generation * trainer.num_iterations
        misaligned = trainer.args.gradient_accumulation_steps % every != 0
        corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    except (AttributeError, TypeError, ZeroDivisionError):
        return False
    return bool(misaligned or corrected)
