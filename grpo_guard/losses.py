"""Which rejected completions stay in their group: those that lose there anyway.

A veto that leaves out whatever it rejects also takes away what training would have unlearnt. Where
a guard rejects honest work that is wrong as well, nothing pushes against it any more, its share
grows, and a policy can end in a habit that is rejected throughout. So under ``"no_gain"`` what is
rejected is left out only where it would gain.

An excluded node's completions are left out all the same: what loses steers as well, away from what
it says, and who is excluded has no say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from grpo_guard.ensemble import Cascade, Ensemble
from grpo_guard.ledger.intake import STANDING_VERIFIER, standing_bars
from grpo_guard.verdict import Verdict
from grpo_guard.verifier import CompletionVerifier


def require_standing_asked(verifier: CompletionVerifier) -> None:
    """Refuse a cascade whose later members know who is excluded: what is rejected before them is
    not shown to them, and an excluded node would get its say back by tripping a screen.

    Raises:
        ValueError: a `Cascade` has a `StandingVerifier` in another member than its first.
    """
    if not isinstance(verifier, Ensemble):
        return
    if isinstance(verifier, Cascade) and any(map(_has_standing, verifier.members[1:])):
        raise ValueError(
            'Policy.on_reject="no_gain": expected StandingVerifier as the first member of its '
            f"Cascade, or in an AllOf; got it later in {verifier.name!r}"
        )
    for member in verifier.members:
        require_standing_asked(member)


def _has_standing(verifier: CompletionVerifier) -> bool:
    if isinstance(verifier, Ensemble):
        return any(map(_has_standing, verifier.members))
    return verifier.name == STANDING_VERIFIER


def may_lose(verdict: Verdict) -> bool:
    """Whether ``"no_gain"`` may leave a completion with this verdict in its group."""
    return verdict.rejected and not standing_bars(verdict)


def with_losses(
    kept: Sequence[float | None],
    rewards: Sequence[float | None],
    rejected: Sequence[bool],
    groups: Sequence[Hashable] | None = None,
    labels: Sequence[Hashable] | None = None,
) -> list[float | None]:
    """The rewards of a group, with those of rejected completions that do not gain by them.

    From the lowest on each is put back whose reward is at most the mean of its group so far. That
    keeps it at most the mean of the group as it is in the end, so that no number of bad rejected
    completions can lift a better one of them above the mean.

    A sender's label can only take the right to stay away, never give it: what stays is at most the
    mean of its prompt's completions, and of those that share its label as well. So it loses whether
    the trainer groups by prompt or by label.

    Args:
        kept: What the veto and the factors of length left; None = not in the group.
        rewards: Before the veto.
        rejected: Which of them `may_lose`.
        groups: Of each completion, by its prompt; None = they are one.
        labels: What each sender calls its group; None = nothing. One that no other completion of
            the prompt bears says nothing.

    Returns:
        ``kept``, with rewards in place of None where they lose. Nothing is put back into a group of
        which nothing is accepted, nor what is not finite.
    """
    groups = [None] * len(kept) if groups is None else groups
    labels = [None] * len(kept) if labels is None else labels
    found = list(kept)
    sizes = Counter(zip(groups, labels, strict=True))
    baselines: dict[tuple[Hashable, ...], _Mean] = {}

    def means(i: int) -> list[_Mean]:
        """Of its prompt, and of its label where that is a group of its own."""
        keys: list[tuple[Hashable, ...]] = [(groups[i],)]
        if sizes[groups[i], labels[i]] > 1:
            keys.append((groups[i], labels[i]))
        return [baselines.setdefault(key, _Mean()) for key in keys]

    for i, value in enumerate(kept):
        if not rejected[i] and value is not None and math.isfinite(value):
            for mean in means(i):
                mean.add(value)
    losing = sorted(
        (reward, i)
        for i, reward in enumerate(rewards)
        if rejected[i] and reward is not None and math.isfinite(reward)
    )
    for reward, i in losing:
        if all(mean.count and reward <= mean.value for mean in means(i)):
            found[i] = float(reward)
            for mean in means(i):
                mean.add(reward)
    return found


@dataclass(slots=True)
class _Mean:
    """A running mean: of equal values exactly their value, and never beyond the largest."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += value / self.count - self.value / self.count
