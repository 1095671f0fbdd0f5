"""Turn verdicts into rewards. No other module decides what a rejected completion earns.

For a completion with the task's reward r, let l be the lowest reward in its group (all completions
of its prompt), and m the mean of the rewards that stay in the group:

=============  ===========================================================================
accepted       r
rejected       by ``Policy.on_reject``:

               * ``"drop"``: removed from the group's baseline and from the loss.
               * ``"no_gain"``: removed if r > m; otherwise it stays with r and loses. For guards
                 that also reject honest work: a policy never unlearns removed completions.
                 Completions rejected for their node's standing are always removed, because
                 losing completions steer training, too.
               * ``"zero"``: min(0, r, l), the paper's r = r_task * r_guard. A plain 0 would be a
                 gain if wrong answers get -1. A sender can lower the mean with a second
                 completion that has a low reward, so l includes rejected completions.
               * a number: that number.
               * ``"keep"``: r. The guard only watches, and returns the same objects unchanged.
abstained      by ``Policy.on_abstain``: ``"skip"`` acts as drop, ``"zero"`` as zero, and
               ``"pass"`` gives r.
=============  ===========================================================================

Length factors multiply what is left of a positive reward. Penalties are not scaled, because a
penalty scaled towards 0 would shrink with every word. A completion with a factor of 0 is dropped if
the policy drops rejections: a correct answer that lost for being long would teach the model to be
wrong.

If the rewards of several functions are summed with weights, drop and zero apply to each function,
no_gain compares weighted sums, and a number is used for one function only. A value with a negative
weight is a cost, and is first turned into a reward. Non-finite values never enter a mean, and
"zero" makes them 0.

A rollout in several segments is settled as one, and counts once in its group's mean, with the mean
of its segments' rewards. Its worst ruling and smallest length factor apply to every segment.
Segments can be a mere claim by the sender, so under "no_gain" an accepted rollout counts with its
lowest reward, and a rejected rollout whose segments earn different rewards is removed
(`group_means.losing`).
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias, TypeVar

from grpo_guard.core.verdict import BARRING_CAUSES, Verdict
from grpo_guard.guard.group_means import losing, units_of
from grpo_guard.guard.policy import AbstainError, Policy
from grpo_guard.nodes.intake import standing_bars

T = TypeVar("T")
Row: TypeAlias = list[float | None]
Reason: TypeAlias = Literal[
    "earned", "passed", "dropped", "skipped", "lost", "zeroed", "replaced", "watched"
]


class Ruling(IntEnum):
    """The part of a verdict that settlement needs, as a number that ranks can exchange."""

    ACCEPTED = 0
    REJECTED = 1
    BARRED = 2
    """Rejected because of its sender, a false reference or a closed round, or repaired by an
    adapter. Such a completion must not stay in its group, not even to lose."""
    ABSTAINED = 3


_WORSE = (Ruling.ACCEPTED, Ruling.ABSTAINED, Ruling.REJECTED, Ruling.BARRED)


def ruling_of(verdict: Verdict) -> Ruling:
    """Return the ruling that a verdict amounts to."""
    if verdict.rejected:
        barred = verdict.cause in BARRING_CAUSES or standing_bars(verdict)
        return Ruling.BARRED if barred else Ruling.REJECTED
    return Ruling.ABSTAINED if verdict.abstained else Ruling.ACCEPTED


def refuse_abstentions(policy: Policy, verdicts: Sequence[Verdict]) -> None:
    """Raise AbstainError if any verdict is an abstention and the policy says to raise."""
    if policy.rules("on_abstain")[0] != "raise":
        return
    for verdict in verdicts:
        if verdict.abstained:
            raise AbstainError(
                f"{verdict.verifier} abstained ({verdict.cause.value}): {verdict.reason}"
            )


@dataclass(frozen=True, slots=True)
class Settlement:
    """The settled rewards of a batch of n completions from k reward functions.

    Args:
        rewards: Settled rewards, [n, k]; None where a function gives no reward, and throughout the
            row of a removed completion.
        kept: Whether each completion stays in its group and in the loss, [n].
        reasons: The reason for each completion's reward, [n].
        lowest: The lowest reward of each group from each function, at most 0.
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
    rollouts: Sequence[Hashable] | None = None,
    length_factors: Sequence[float] | None = None,
    lowest_seen: float = 0.0,
) -> Settlement:
    """Settle a batch by the rules in the module's docstring. No argument is modified.

    Args:
        rewards: Rewards of n completions from k functions, [n, k]; None where a function gives no
            reward.
        rulings: The ruling on each completion, [n].
        policy: What to do with rejections and abstentions.
        weights: The weight of each function, [k]; None for a weight of 1 each.
        groups: The group of each completion, [n], within which rewards are compared; None if all
            completions are one group.
        labels: The senders' own names for their groups, [n]. Under "no_gain" a label can cost a
            rejected completion its place in the group, but never secure one: see `losing`.
        rollouts: The rollout that each completion is a segment of, [n]; None for a completion that
            is a rollout by itself. None instead of the list if all are.
        length_factors: Factors in [0, 1] for positive rewards, [n]; None to scale nothing.
        lowest_seen: The lowest reward of earlier batches, at most 0, for a completion that arrives
            without its group.

    Raises:
        ValueError: the lengths of the arguments differ.
        AbstainError: a ruling is an abstention and the policy says to raise.
    """
    policy, n = policy.chosen(), len(rulings)
    if len(rewards) != n:
        raise ValueError(f"rewards: expected {n}, one per completion, got {len(rewards)}")
    weights = [1.0] * (len(rewards[0]) if rewards else 0) if weights is None else weights
    groups = [None] * n if groups is None else groups
    _require_lengths(
        n, groups=groups, labels=labels, rollouts=rollouts, length_factors=length_factors
    )
    given = [_turned(row, weights) for row in rewards]
    unruled = not any(rulings) and length_factors is None  # nearly every batch
    if policy.watches or unruled:  # all keep their rewards
        if Ruling.ABSTAINED in rulings:
            _reason(Ruling.ABSTAINED, policy)  # which can raise
        reasons: list[Reason] = ["watched" if ruling else "earned" for ruling in rulings]
        lowest = [*_lowest(given, groups).values()]
        return Settlement([list(row) for row in rewards], [True] * n, reasons, lowest)
    return _decided(
        given, rulings, policy, weights, groups, labels, units_of(rollouts, n), length_factors,
        lowest_seen,
    )  # fmt: skip


def _decided(
    given: list[list[float | None]],
    rulings: Sequence[Ruling],
    policy: Policy,
    weights: Sequence[float],
    groups: Sequence[Hashable],
    labels: Sequence[Hashable] | None,
    units: Sequence[Hashable],
    length_factors: Sequence[float] | None,
    lowest_seen: float,
) -> Settlement:
    """Settle a batch in which at least one completion is rejected, abstained on or scaled.
    ``given`` holds the rewards returned by `_turned`, [n, k], and ``units`` the units of
    `group_means`, [n]. The other arguments are as for `settle`."""
    rulings = _worst(rulings, units, _WORSE.index)
    factors = () if length_factors is None else _worst(length_factors, units, operator.neg)
    reasons = [_reason(ruling, policy) for ruling in rulings]
    earned = _vetoed(given, reasons, policy, weights)
    no_gain = policy.on_reject == "no_gain"
    may_lose = [no_gain and ruling is Ruling.REJECTED for ruling in rulings]
    # Include completions that may stay and lose: otherwise a second completion with a low reward
    # would leave a zeroed abstention above the mean.
    staying = [given[i] if loses else earned[i] for i, loses in enumerate(may_lose)]
    lowest = _lowest(staying, groups)
    # A unit that is alone in its group, however many segments it has, can only be compared with all
    # other rewards.
    sizes = Counter(group for group, _ in set(zip(groups, units, strict=True)))
    of_lone = min(lowest_seen, 0.0, *lowest.values())
    for i, (group, why) in enumerate(zip(groups, reasons, strict=True)):
        if why in ("zeroed", "replaced"):
            number = _first_rewarding(given[i], weights) if why == "replaced" else None
            alone, columns = sizes[group] == 1, range(len(earned[i]))
            floors = [of_lone if alone else lowest.get((group, j), 0.0) for j in columns]
            earned[i] = _lowered(earned[i], floors, number)
    _scale(earned, reasons, factors, policy)
    if no_gain:
        sums = _sums(earned, weights), _sums(given, weights)
        for i in losing(*sums, may_lose, groups, labels, units):
            earned[i], reasons[i] = given[i], "lost"
    kept = [why not in ("dropped", "skipped") for why in reasons]
    rewards = [_turned(row, weights) for row in earned]
    return Settlement(rewards, kept, reasons, list(lowest.values()))


def _require_lengths(n: int, **per_row: Sequence[Any] | None) -> None:
    """Raise ValueError unless each argument has one value per completion."""
    for name, values in per_row.items():
        if values is not None and len(values) != n:
            raise ValueError(f"{name}: expected {n}, one per completion, got {len(values)}")


def mean_of_kept(kept: Sequence[float], nothing: float = 0.0) -> float:
    """Return the reward for a removed completion in a trainer that cannot remove it: the mean of
    the ``kept`` rewards of its group. The completion's advantage is then 0, and the group's mean is
    the same as without it. Returns ``nothing`` if the group keeps no rewards."""
    if not kept:
        return nothing
    # Divide first: a grader that subtracts can return 1e308, and two such rewards would overflow.
    mean = math.fsum(value / len(kept) for value in kept)
    # Clamp to the rewards' range to undo rounding: the mean of equal rewards must equal them.
    return min(max(mean, min(kept)), max(kept))


def _worst(
    values: Sequence[T], units: Sequence[Hashable], badness: Callable[[T], float]
) -> list[T]:
    """Replace the value of each completion with the worst value in its unit."""
    worst: dict[Hashable, T] = {}
    for value, unit in zip(values, units, strict=True):
        worst[unit] = max(worst.get(unit, value), value, key=badness)
    return [worst[unit] for unit in units]


def _reason(ruling: Ruling, policy: Policy) -> Reason:
    if ruling == Ruling.ACCEPTED:
        return "earned"
    if ruling == Ruling.ABSTAINED:
        if policy.on_abstain == "raise":
            raise AbstainError('the guard abstained, and Policy(on_abstain="raise") stops the run')
        by_rule: dict[Any, Reason] = {"skip": "skipped", "zero": "zeroed", "pass": "passed"}
        return by_rule[policy.on_abstain]
    if policy.on_reject == "zero":
        return "zeroed"
    return "dropped" if policy.leaves_out else "replaced"


def _turned(row: Sequence[float | None], weights: Sequence[float]) -> Row:
    """Flip the sign of negatively weighted values in a row; a second call undoes the first.

    A cost of -5 then counts as a gain of 5; a veto that mistook it for a penalty would keep it.
    """
    return [
        -v if v is not None and weight < 0 else v for v, weight in zip(row, weights, strict=True)
    ]


def _first_rewarding(row: Row, weights: Sequence[float]) -> int | None:
    """Index of the first function with a reward for the completion and a nonzero weight."""
    rewarding = (j for j, v in enumerate(row) if v is not None and weights[j] != 0)
    return next(rewarding, None)


def _vetoed(
    given: Sequence[Row], reasons: Sequence[Reason], policy: Policy, weights: Sequence[float]
) -> list[Row]:
    """Apply each completion's own ruling to its rewards, before groups are compared."""
    left: list[Row] = []
    number = policy.on_reject if isinstance(policy.on_reject, int | float) else 0.0
    for row, why in zip(given, reasons, strict=True):
        if why in ("earned", "passed"):
            left.append(list(row))
        elif why in ("dropped", "skipped"):
            left.append([None] * len(row))
        else:
            left.append([None if value is None else _at_most_zero(value) for value in row])
            first = _first_rewarding(row, weights) if why == "replaced" else None
            if first is not None:
                left[-1][first] = float(number)
    return left


def _scale(
    earned: list[Row], reasons: list[Reason], factors: Sequence[float], policy: Policy
) -> None:
    """Scale positive rewards by length factors; with no factors, nothing changes."""
    for i, factor in enumerate(factors):
        gains = any(value is not None and value > 0 for value in earned[i])
        if gains and factor <= 0 and policy.leaves_out:
            earned[i], reasons[i] = [None] * len(earned[i]), "dropped"
        elif gains and factor < 1:
            earned[i] = [v * factor if v is not None and v > 0 else v for v in earned[i]]


def _at_most_zero(value: float) -> float:
    """Cap a reward at 0. Non-finite values become 0, because infinity would ruin the baseline."""
    return min(0.0, float(value)) if math.isfinite(value) else 0.0


def _lowest(
    rewards: Sequence[Row], groups: Sequence[Hashable]
) -> dict[tuple[Hashable, int], float]:
    """Map each (group, function) to its lowest reward, at most 0, in [n, k] rewards."""
    lowest: dict[tuple[Hashable, int], float] = {}
    for row, group in zip(rewards, groups, strict=True):
        for j, value in enumerate(row):
            if value is not None and math.isfinite(value):
                lowest[group, j] = min(value, lowest.get((group, j), 0.0))
    return lowest


def _lowered(row: Row, floors: Sequence[float], number: int | None) -> Row:
    """Lower each reward of a vetoed row to at most its floor, except the policy's own number, which
    is in column ``number``.

    If a function gives this completion no reward but punishes others, the completion gets their
    lowest reward: text that a function cannot read must not fare better than a wrong answer.
    """
    if all(value is None for value in row):
        return row
    return [
        value if j == number or (value is None and low >= 0) else min(value or 0.0, low)
        for j, (value, low) in enumerate(zip(row, floors, strict=True))
    ]


def _sums(rows: Sequence[Row], weights: Sequence[float]) -> list[float | None]:
    """The weighted sum of each row; None for rows without any reward."""
    return [
        None
        if all(v is None for v in row)
        else sum(abs(w) * v for v, w in zip(row, weights, strict=True) if v is not None and w)
        for row in rows
    ]
