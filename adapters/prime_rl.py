"""prime-rl: a `RolloutFilter` that keeps what the guard rejects from the trainer.

    sink.pre_filters.append(GuardFilter(guard))  # before the first rollout arrives

A filter comes after the advantages: what it takes out keeps its reward in the group's baseline, so
that poison which earns would still lower the others. Guard the environment's rewards as well
(`grpo_guard.adapters.verifiers`), or put nothing that strangers sent into a group. prime-rl builds
its filters from a closed list of names, so that this one is added in code.

``check`` runs in the orchestrator's event loop and holds it up: use quick verifiers. Each turn that
the model wrote is a completion with its token ids, see `grpo_guard.adapters.traces`; its round is
the policy's version. Written against the published source (orchestrator/filters.py, train_sink.py,
types.py); not run in prime-rl, whose orchestrator needs GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_guard.adapters.traces import review_of
from grpo_guard.guard import Guard


@dataclass
class FilterResult:
    """As prime-rl's own, of which it reads ``detected``."""

    detected: bool
    detection_index: int | None = None


@dataclass
class GuardFilter:
    """Detects what the guard rejects, and what it could not look at unless the policy lets it pass.

    Of the policy only ``on_abstain`` counts: a filter takes a rollout out or leaves it in.

    Args:
        guard: Verifier, policy and ledger.
        name: Of the filter, in prime-rl's metrics.
        enforce: What is detected is not trained on; False only counts it.
    """

    guard: Guard
    name: str = "guard"
    enforce: bool = True

    def check(self, rollout: Any) -> FilterResult:
        """Whether a rollout is to be taken out.

        Raises:
            AbstainError: too many abstentions, or one under ``on_abstain="raise"``.
        """
        version = getattr(rollout, "policy_version", None)
        review = review_of(self.guard, rollout, round=version if type(version) is int else None)
        (verdict,) = review.verdicts
        if verdict.abstained:
            self.guard.settle([0.0], review)  # raises where the policy says so
            return FilterResult(self.guard.policy.on_abstain != "pass")
        return FilterResult(verdict.rejected)
