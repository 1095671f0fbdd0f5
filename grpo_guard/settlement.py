"""What verdicts make of rewards. Nothing else computes what a rejected completion earns.

For one completion with the task's reward r, in a group (all completions of its prompt) whose lowest
reward is l, where m is the mean of what stays in the group:

=============  ===========================================================================
accepted       r
rejected       by ``Policy.on_reject``:

               * ``"drop"``: out of the group's baseline and of the loss.
               * ``"no_gain"``: out where r > m; otherwise it stays with r and loses. For guards
                 that also reject honest work: what is left out is never unlearnt. What a node's
                 standing rejects is always out, since what loses steers as well.
               * ``"zero"``: min(0, r, l), the paper's r = r_task * r_guard. A 0 alone would be a
                 gain where wrong answers get -1, and a sender can bring a low reward along in a
                 second completion, so l counts what is rejected, too.
               * a number: that number.
               * ``"keep"``: r, and so does everything else, the same objects: the guard watches.
abstained      by ``Policy.on_abstain``: ``"skip"`` as drop, ``"zero"`` as zero, ``"pass"`` r.
=============  ===========================================================================

Factors of length multiply what is left of a positive reward: scaled towards 0, a penalty would
shrink with every word. Where nothing is left of it (a factor of 0) the completion is dropped, if
that is how rejections go: a right answer that loses for its length teaches to be wrong.

Where several reward functions are summed with weights, drop and zero hold for each, no_gain
compares weighted sums, and a number counts once. A weight below 0 turns a cost into a reward first.
What is not finite never enters a mean, and "zero" makes it 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from grpo_guard.nodes.intake import standing_bars
from grpo_guard.policy import AbstainError, Policy
from grpo_guard.verdict import BARRING_CAUSES, Verdict

Row: TypeAlias = list[float | None]
Reason: TypeAlias = Literal[
    "earned", "passed", "dropped", "skipped", "lost", "zeroed", "replaced", "watched"
]


class Ruling(IntEnum):
    """All that a settlement needs of a verdict; a number, so that ranks can exchange it."""

    ACCEPTED = 0
    REJECTED = 1
    BARRED = 2
    """Rejected for who sent it, for a false reference or for a round that is over, or put right by
    an adapter: it must not even lose."""
    ABSTAINED = 3


def ruling_of(verdict: Verdict) -> Ruling:
    """The ruling of a verdict."""
    if verdict.rejected:
        barred = verdict.cause in BARRING_CAUSES or standing_bars(verdict)
        return Ruling.BARRED if barred else Ruling.REJECTED
    return Ruling.ABSTAINED if verdict.abstained else Ruling.ACCEPTED


def refuse_abstentions(policy: Policy, verdicts: Sequence[Verdict]) -> None:
    """Raises AbstainError where something abstained and the policy says to raise."""
    if policy.rules("on_abstain")[0] != "raise":
        return
    for verdict in verdicts:
        if verdict.abstained:
            raise AbstainError(
                f"{verdict.verifier} abstained ({verdict.cause.value}): {verdict.reason}"
            )


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a batch earns.

    Args:
        rewards: [n, k]; None where a function says nothing, in every column of what is left out.
        kept: Which completions stay in their group and in the loss, [n].
        reasons: Why each earns what it does, [n].
        lowest: The lowest reward of each group and 0, over its columns.
    """

    rewards: list[Row]
    kept: list[bool]
    reasons: list[Reason]
    lowest: list[float]


def settle(
    rewards: Sequence[Sequence[float | None]],
    rulings: Sequence[Ruling],
    policy: Policy,
    *,
    weights: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    labels: Sequence[Hashable] | None = None,
    length_factors: Sequence[float] | None = None,
    lowest_seen: float = 0.0,
) -> Settlement:
    """Settle a batch; see the module for what each rule means. No argument is changed.

    Args:
        rewards: Of n completions by k functions, [n, k]; None = the function says nothing.
        rulings: [n].
        policy: What to do with what was rejected or not looked at.
        weights: Of the functions, [k]; None = 1 each.
        groups: Whose rewards are compared, [n]; None = all are one group.
        labels: Senders' own names for their groups, [n]. They can cost a rejected completion its
            place under "no_gain", and never keep it one: see `_losing`.
        length_factors: In [0, 1], [n].
        lowest_seen: The lowest reward of earlier batches, at most 0: a completion that comes
            without its group is measured by it.

    Raises:
        ValueError: lengths differ.
        AbstainError: something abstained and the policy says to raise.
    """
    policy, n = policy.chosen(), len(rulings)
    if len(rewards) != n:
        raise ValueError(f"rewards: expected {n}, one per completion, got {len(rewards)}")
    weights = [1.0] * (len(rewards[0]) if rewards else 0) if weights is None else weights
    groups = [None] * n if groups is None else groups
    _require_lengths(n, groups=groups, labels=labels, length_factors=length_factors)
    given = [_turned(row, weights) for row in rewards]
    if policy.watches:
        return _watched(rewards, rulings, policy, _lowest(given, groups))
    if not any(rulings) and length_factors is None:  # nearly every batch: all keep what they have
        lowest = [*_lowest(given, groups).values()]
        return Settlement([list(row) for row in rewards], [True] * n, ["earned"] * n, lowest)
    reasons = [_reason(ruling, policy) for ruling in rulings]
    earned = _vetoed(given, reasons, policy, weights)
    no_gain = policy.on_reject == "no_gain"
    may_lose = [no_gain and ruling is Ruling.REJECTED for ruling in rulings]
    # With what may stay and lose: brought along in a second completion, a low reward would lift
    # above the mean what abstained and is to be zeroed.
    staying = [given[i] if loses else earned[i] for i, loses in enumerate(may_lose)]
    floors = _Floors(staying, groups, lowest_seen)
    for i, why in enumerate(reasons):
        if why in ("zeroed", "replaced"):
            number = _heard(given[i], weights) if why == "replaced" else None
            earned[i] = floors.lowered(earned[i], groups[i], number)
    _scale(earned, reasons, () if length_factors is None else length_factors, policy)
    if no_gain:
        for i in _losing(_sums(earned, weights), _sums(given, weights), may_lose, groups, labels):
            earned[i], reasons[i] = given[i], "lost"
    kept = [why not in ("dropped", "skipped") for why in reasons]
    return Settlement(
        [_turned(row, weights) for row in earned], kept, reasons, list(floors.of.values())
    )


def _watched(
    rewards: Sequence[Sequence[float | None]],
    rulings: Sequence[Ruling],
    policy: Policy,
    lowest: dict[tuple[Hashable, int], float],
) -> Settlement:
    """What a guard that only watches makes of a batch: nothing.

    Raises:
        AbstainError: something abstained and the policy says to raise.
    """
    for ruling in rulings:
        if ruling == Ruling.ABSTAINED:
            _reason(ruling, policy)  # which raises, if that is asked for
    reasons: list[Reason] = [
        "earned" if ruling == Ruling.ACCEPTED else "watched" for ruling in rulings
    ]
    return Settlement(
        [list(row) for row in rewards], [True] * len(rulings), reasons, [*lowest.values()]
    )


def _require_lengths(n: int, **per_row: Sequence[Any] | None) -> None:
    """Raises ValueError: an argument has not one value per completion."""
    for name, values in per_row.items():
        if values is not None and len(values) != n:
            raise ValueError(f"{name}: expected {n}, one per completion, got {len(values)}")


def mean_of_kept(kept: Sequence[float], nothing: float = 0.0) -> float:
    """What a trainer that cannot leave a completion out gives it: its advantage is 0 then, and the
    group's mean what it is without it.

    Args:
        kept: Rewards of one group's completions that stay.
        nothing: Where nobody stays.
    """
    if not kept:
        return nothing
    # Divided first: a grader that subtracts answers may say 1e308, and two of these have no sum.
    mean = math.fsum(value / len(kept) for value in kept)
    # Within their range, whatever rounding does: a group of equals must stay one.
    return min(max(mean, min(kept)), max(kept))


def _reason(ruling: Ruling, policy: Policy) -> Reason:
    if ruling == Ruling.ACCEPTED:
        return "earned"
    if ruling == Ruling.ABSTAINED:
        if policy.on_abstain == "raise":
            raise AbstainError('the guard abstained, and Policy(on_abstain="raise") stops there')
        by_rule: dict[Any, Reason] = {"skip": "skipped", "zero": "zeroed", "pass": "passed"}
        return by_rule[policy.on_abstain]
    if policy.on_reject == "zero":
        return "zeroed"
    return "dropped" if policy.leaves_out else "replaced"


def _turned(row: Sequence[float | None], weights: Sequence[float]) -> Row:
    """With the sign of what is weighted below 0 turned, and again to undo it.

    A cost of -5 is a gain of 5 by then; a veto that took it for a penalty would let it stand.
    """
    return [
        -v if v is not None and weight < 0 else v for v, weight in zip(row, weights, strict=True)
    ]


def _heard(row: Row, weights: Sequence[float]) -> int | None:
    """The first function that says something of a completion and counts in its sum."""
    heard = (j for j, v in enumerate(row) if v is not None and weights[j] != 0)
    return next(heard, None)


def _vetoed(
    given: Sequence[Row], reasons: Sequence[Reason], policy: Policy, weights: Sequence[float]
) -> list[Row]:
    """What each completion has left by its own ruling, before groups are compared."""
    left: list[Row] = []
    number = policy.on_reject if isinstance(policy.on_reject, int | float) else 0.0
    for row, why in zip(given, reasons, strict=True):
        if why in ("earned", "passed"):
            left.append(list(row))
        elif why in ("dropped", "skipped"):
            left.append([None] * len(row))
        else:
            left.append([None if value is None else _at_most_zero(value) for value in row])
            heard = _heard(row, weights) if why == "replaced" else None
            if heard is not None:
                left[-1][heard] = float(number)
    return left


def _scale(
    earned: list[Row], reasons: list[Reason], factors: Sequence[float], policy: Policy
) -> None:
    """Scale positive rewards by length factors; no factors: nothing changes."""
    for i, factor in enumerate(factors):
        gains = any(value is not None and value > 0 for value in earned[i])
        if gains and factor <= 0 and policy.leaves_out:
            earned[i], reasons[i] = [None] * len(earned[i]), "dropped"
        elif gains and factor < 1:
            earned[i] = [v * factor if v is not None and v > 0 else v for v in earned[i]]


def _at_most_zero(value: float) -> float:
    """What is not finite becomes 0: kept, an infinity would spoil the baseline of the others."""
    return min(0.0, float(value)) if math.isfinite(value) else 0.0


def _lowest(
    rewards: Sequence[Row], groups: Sequence[Hashable]
) -> dict[tuple[Hashable, int], float]:
    """The lowest reward of each (group, function), and 0 at most; of [n, k] rewards, [n] groups."""
    lowest: dict[tuple[Hashable, int], float] = {}
    for row, group in zip(rewards, groups, strict=True):
        for j, value in enumerate(row):
            if value is not None and math.isfinite(value):
                lowest[group, j] = min(value, lowest.get((group, j), 0.0))
    return lowest


class _Floors:
    """What a vetoed completion gets at most: the lowest reward of its group.

    Args:
        rewards: [n, k], after the veto.
        groups: [n].
        seen: The lowest of earlier batches.
    """

    def __init__(self, rewards: Sequence[Row], groups: Sequence[Hashable], seen: float) -> None:
        self.sizes = Counter(groups)
        self.of = _lowest(rewards, groups)
        # Of a completion without its group, whatever else came is all that is known.
        self.of_lone = min(seen, 0.0, *self.of.values())

    def lowered(self, row: Row, group: Hashable, number: int | None) -> Row:
        """A vetoed row, each function's reward but the policy's own ``number`` at most the lowest.

        Where a function says nothing of this one and punishes others, it gets what they get: a
        text that a function cannot read must not be better than a wrong one.
        """
        if all(value is None for value in row):
            return row
        alone = self.sizes[group] == 1
        lowest = [self.of_lone if alone else self.of.get((group, j), 0.0) for j in range(len(row))]
        return [
            value if j == number or (value is None and low >= 0) else min(value or 0.0, low)
            for j, (value, low) in enumerate(zip(row, lowest, strict=True))
        ]


def _sums(rows: Sequence[Row], weights: Sequence[float]) -> list[float | None]:
    """Weighted sums; None where no function says anything."""
    return [
        None
        if all(v is None for v in row)
        else sum(abs(w) * v for v, w in zip(row, weights, strict=True) if v is not None and w)
        for row in rows
    ]


def _losing(
    earned: Sequence[float | None],
    given: Sequence[float | None],
    may_lose: Sequence[bool],
    groups: Sequence[Hashable],
    labels: Sequence[Hashable] | None,
) -> list[int]:
    """Places of rejected completions that stay under "no_gain", since they lose.

    From the lowest on each stays whose reward is at most the mean of its group so far. That keeps
    it at most the mean of the group as it is in the end, so that no number of bad rejected
    completions can lift a better one of them above the mean. Nothing stays in a group of which
    nothing else does.

    A label is its sender's word. What stays is at most the mean of its group, and of those that
    share its label as well: poison beside its own clean copy under a label of its own loses
    whichever of the two the trainer compares. A label that nobody else in the group has says
    nothing.
    """
    labels = [None] * len(earned) if labels is None else labels
    sizes = Counter(zip(groups, labels, strict=True))
    means: dict[tuple[Hashable, ...], _Mean] = {}

    def compared(i: int) -> list[_Mean]:
        keys: list[tuple[Hashable, ...]] = [(groups[i],)]
        if sizes[groups[i], labels[i]] > 1:
            keys.append((groups[i], labels[i]))
        return [means.setdefault(key, _Mean()) for key in keys]

    for i, value in enumerate(earned):
        if not may_lose[i] and value is not None and math.isfinite(value):
            for mean in compared(i):
                mean.add(value)
    candidates = sorted(
        (reward, i)
        for i, reward in enumerate(given)
        if may_lose[i] and reward is not None and math.isfinite(reward)
    )
    staying = list[int]()
    for reward, i in candidates:
        if all(mean.count and reward <= mean.value for mean in compared(i)):
            staying.append(i)
            for mean in compared(i):
                mean.add(reward)
    return staying


@dataclass(slots=True)
class _Mean:
    """A running mean: of equal values exactly their value, and never beyond the largest."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += value / self.count - self.value / self.count
