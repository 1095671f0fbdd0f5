"""The record of a swarm's round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.swarm.examples import examples_of


@dataclass(frozen=True, slots=True)
class Submitted:
    """An item of the exchange: a completion, whether it is poisoned, and the span of the poison.

    ``malicious`` describes the sender: a malicious node also sends completions that are not
    poisoned.
    """

    completion: Completion
    poisoned: bool
    span: tuple[int, int] | None
    reward: float
    malicious: bool = False
    withheld: bool = False
    """Whether the sender withheld the completion, leaving its slot empty for all other nodes."""


@dataclass(frozen=True, slots=True)
class Round:
    """One iteration's result. Rates are over the honest nodes' completions, before the update.

    Verdicts are those of the first honest node; if nodes have their own guards, ``rejected_by``
    counts how many honest completions each guard rejected. ``cover`` counts malicious nodes'
    poison-free completions. ``asr`` is the attack's success rate among the honest nodes'
    completions of the round, or among as many probes.
    """

    iteration: int
    asr: float
    honest_reward: float
    mean_tokens: float
    grad_norm: float
    seconds: float
    guard_seconds: float
    honest: int
    honest_correct: int
    poisoned: int
    rejected_honest: int
    rejected_honest_correct: int
    rejected_poisoned: int
    abstained: int
    shown: tuple[dict[str, Any], ...]
    """The first completion of each kind of example; see `swarm.examples`."""
    cover: int = 0
    rejected_cover: int = 0
    abstained_poisoned: int = 0
    rejected_by: tuple[int, ...] = ()
    excluded: tuple[str, ...] = ()
    withheld: int = 0
    """Number of slots left empty by malicious nodes; they count neither as poison nor as cover."""
    honest_rejected_for: dict[str, int] = field(default_factory=dict)
    """Rejections of honest completions by each verifier; several can reject the same one."""


def record(
    iteration: int,
    submitted: Sequence[Submitted],
    verdicts: list[Verdict] | None,
    *,
    asr: float,
    grad_norm: float,
    seconds: float,
    guard_seconds: float,
    rejected_by: tuple[int, ...] = (),
    excluded: tuple[str, ...] = (),
) -> Round:
    """Build a round's record from its completions and, with a guard, their verdicts."""
    by_item: Sequence[Verdict | None] = verdicts or [None] * len(submitted)
    pairs = list(zip(submitted, by_item, strict=True))
    honest = [item for item in submitted if not item.malicious]
    judged = [(item, verdict) for item, verdict in pairs if verdict is not None]
    rejected = [(item, verdict) for item, verdict in judged if verdict.rejected]
    poison = [(item, verdict) for item, verdict in rejected if item.poisoned]
    refused = [item for item, _ in rejected if not item.malicious]
    poisoned = sum(item.poisoned for item in submitted)
    withheld = sum(item.withheld for item in submitted)
    return Round(
        iteration=iteration,
        asr=asr,
        honest_reward=sum(item.reward for item in honest) / len(honest),
        mean_tokens=sum(len(i.completion.completion_ids or ()) for i in honest) / len(honest),
        grad_norm=grad_norm,
        seconds=seconds,
        guard_seconds=guard_seconds,
        honest=len(honest),
        honest_correct=sum(item.reward > 0 for item in honest),
        poisoned=poisoned,
        rejected_honest=len(refused),
        rejected_honest_correct=sum(item.reward > 0 for item in refused),
        rejected_poisoned=len(poison),
        abstained=sum(verdict.abstained and not item.withheld for item, verdict in judged),
        shown=examples_of(iteration, pairs),
        cover=len(submitted) - len(honest) - poisoned - withheld,
        rejected_cover=len(rejected) - len(refused) - len(poison),
        abstained_poisoned=sum(verdict.abstained and item.poisoned for item, verdict in judged),
        rejected_by=rejected_by,
        excluded=excluded,
        honest_rejected_for=dict(
            Counter(
                member.verifier
                for item, verdict in rejected
                for member in verdict.members or (verdict,)
                if member.rejected and not item.malicious
            )
        ),
        withheld=withheld,
    )
