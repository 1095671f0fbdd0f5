"""TRL: the trainer's scoring forward handed to the verifiers, so that they need none of their own.

    scorer = ForwardReuse(model)
    verifier = LogProbBoundVerifier(None, tokenizer, scorer=scorer, sampling=...)

    class Trainer(ReusesForward, GRPOTrainer): ...

    Trainer(model, reward_funcs=guard(verifier)(reward), ..., forward_reuse=scorer)

TRL runs the policy over the completions before the rewards only where samples may come from older
weights: ``num_iterations > 1``, ``steps_per_generation`` beyond the accumulation steps, or vLLM
with importance sampling. Elsewhere there is nothing to reuse: the verifier runs its own pass.
"""

from __future__ import annotations

from typing import Any

from grpo_guard.logprob.scorers.reuse import ForwardReuse


class ReusesForward:
    """Mixin for `GRPOTrainer` (trl 1.6 and later); stands before it among the bases.

    Args:
        forward_reuse: The scorer that the verifiers use.
    """

    _generating = False

    def __init__(self, *args: Any, forward_reuse: ForwardReuse, **kwargs: Any) -> None:
        self.forward_reuse = forward_reuse
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._generating = True
        try:
            return super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        finally:
            self._generating = False

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        """The policy's pass before the rewards is kept; the reference's and the loss's are not."""
        forward = super()._get_per_token_logps_and_entropies  # type: ignore[misc]
        if not self._generating or model is not self.model:  # type: ignore[attr-defined]
            return forward(model, input_ids, attention_mask, logits_to_keep, *args, **kw)
        with self.forward_reuse.capture(input_ids, attention_mask, int(logits_to_keep)):
            return forward(model, input_ids, attention_mask, logits_to_keep, *args, **kw)
