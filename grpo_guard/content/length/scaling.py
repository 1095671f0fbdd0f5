"""Multiplicative length scaling: reduce rewards for length where rejection would be uncertain.

The reward is multiplied by a factor, as in Group Relative Reward Rescaling (GR3, arXiv 2603.10535):
an additive penalty can be traded off against the reward, a factor cannot. GR3 scales every
completion relative to its group. Here that is optional (``tolerance``), because it costs honest
work: a completion does not show whether it is padded or thorough, and honest answers to the same
question differ in length by half.

Nodes do show a difference. If a node's paid (rewarded) answers are time and again longer than most
other nodes' answers to the same prompts, by more than its unpaid answers are, the node chooses its
length for the reward (`UsualLengths`). A model that thinks at length also does so when it is wrong.

By default, only nodes that choose their length are scaled, and none are if nodes have no names or
if each node answers its own prompts: a reference requires two other nodes (`compared`).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_guard.content.length.compare import Excess, Member, RewardOf, compared, groups_of
from grpo_guard.core.arguments import worded_class
from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.turns import own_words
from grpo_guard.core.verdict import Verdict
from grpo_guard.nodes.usual_lengths import Paid, Usual, UsualLengths

_NOTHING = Usual()
# Smaller factors become 0. A trainer that divides by a group's deviation would turn the smallest
# reward into a full advantage if nothing else in the group earned a reward, as on a question that
# is too hard for everyone but an attacker who knows the answer.
_LEAST = 0.01
# Multiplies the strength for nodes whose answers are longer when they are paid: a completion that
# is a third of a standard deviation too long must leave its group. A smaller multiplier would keep
# it there with a negative advantage, and penalising a right answer teaches the policy to be wrong.
_CHOSEN = 4.0


@worded_class
@dataclass(frozen=True, slots=True)
class LengthScaling:
    """Scales down the rewards of nodes that choose their length for the reward.

    Apply it to the rewards *after* the verdicts have been applied and before the trainer computes
    advantages. ``Completion.node`` must be the known identity of the sender.

    Args:
        tolerance: Number of standard deviations, >= 0, by which any completion can exceed the
            middle of the other nodes' lengths at no cost. Beyond that, honest work is scaled too
            (figures: docs/content-verifiers.md). None to scale only nodes that choose their length.
        strength: Steepness of the scaling: ``factor = exp(-strength * (z - tolerance))``, at most
            1, for a completion z standard deviations above the middle; in other words, a power of
            the ratio of lengths. 0 disables scaling.
        reward_of: Function that returns the reward of a completion, used to tell which completions
            were paid; None to judge by the ``reference`` given by most nodes of the prompt. Without
            either, nothing is learnt about nodes.
        wanted_peers: Minimum number of completions of equal worth from other nodes for a
            comparison. With fewer, all work of other nodes is used, and if even that is less,
            nothing is scaled.
        past: Memory of nodes; True for a new `UsualLengths`. With None or False, nodes are not told
            apart, and only ``tolerance`` has an effect.

    Raises:
        ValueError: an argument is out of range, or nothing could ever be scaled.

    Examples:
        >>> rewards = guard.apply(rewards, completions)
        >>> rewards = LengthScaling().apply(rewards, completions)
    """

    tolerance: float | None = None
    strength: float = 4.0
    reward_of: RewardOf | None = None
    wanted_peers: int = 3
    past: UsualLengths | bool | None = True

    def __post_init__(self) -> None:
        for name in ("tolerance", "strength"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"LengthScaling.{name}: expected a number >= 0, got {value!r}")
        if self.tolerance is None and not self.past:
            raise ValueError("LengthScaling: expected a tolerance or past=True, got neither")
        # Configuration files can only say yes or no.
        object.__setattr__(self, "past", UsualLengths() if self.past is True else self.past or None)

    def factors(self, batch: Sequence[Completion]) -> list[float]:
        """Return one factor in [0, 1] per completion, in order; 1 if there is no comparison.

        With ``past``, the batch is remembered; earlier batches determine which nodes choose their
        length.
        """
        batch = own_words(batch)  # pages returned by a tool are not padding
        past = self.past if isinstance(self.past, UsualLengths) else None
        measured = self._measured(batch)
        known: Mapping[str, Usual] = {}
        chosen = frozenset[str]()
        if past is not None:
            known, chosen = past.known(), past.longer_when_paid()
            _remember(past, batch, measured)
        factors = [1.0] * len(batch)
        for member, excess in measured:
            usual = known.get(member.node or "", _NOTHING)
            beyond = max(excess.log_ratio - usual.excess, 0.0) / excess.spread
            if member.node in chosen:
                factors[member.index] = _scaled(_CHOSEN * self.strength * beyond)
            elif self.tolerance is not None:
                factors[member.index] = _scaled(self.strength * max(beyond - self.tolerance, 0.0))
        return factors

    def _measured(self, batch: Sequence[Completion]) -> list[tuple[Member, Excess]]:
        groups = groups_of(batch, self.reward_of)
        # One or two peers are not enough: otherwise, by sending two words, a peer could take the
        # reward away from the right answer next to it.
        return [
            (member, excess)
            for group, excesses in compared(groups, self.wanted_peers)
            for member, excess in zip(group, excesses, strict=True)
            if excess is not None and excess.peers >= self.wanted_peers
        ]

    def apply(
        self, rewards: Sequence[float | None], batch: Sequence[Completion]
    ) -> list[float | None]:
        """Multiply the rewards by their factors.

        None, NaN and rewards <= 0 are unchanged: if a penalty were scaled towards 0, it would
        shrink with every word.

        Raises:
            ValueError: the number of rewards differs from the number of completions.
        """
        if len(rewards) != len(batch):
            raise ValueError(f"rewards: expected {len(batch)}, got {len(rewards)}")
        return [
            reward * factor if reward is not None and reward > 0 else reward
            for reward, factor in zip(rewards, self.factors(batch), strict=True)
        ]


def _scaled(penalty: float) -> float:
    factor = math.exp(-penalty)
    return factor if factor >= _LEAST else 0.0


def _remember(
    past: UsualLengths, batch: Sequence[Completion], measured: Sequence[tuple[Member, Excess]]
) -> None:
    """Learn usual lengths from unpaid answers, and compare paid answers with them.

    The unpaid answers of this batch count at once; otherwise the first large batch from a model
    that thinks at length would look like padding.
    """
    named = [(m, m.node, m.worth, excess) for m, excess in measured]
    past.observe([
        (node, excess.log_ratio)
        for _, node, worth, excess in named
        if node is not None and worth is not None and worth <= 0
    ])  # fmt: skip
    known = past.known()
    paid = defaultdict[str, list[Paid]](list)
    for member, node, worth, _ in named:
        if node is not None and worth is not None and worth > 0:
            group = paid[prompt_key(batch[member.index].prompt)]
            group.append(Paid.of(node, worth, member.length, known.get(node, _NOTHING)))
    past.observe_paid(list(paid.values()))


class Scales(Protocol):
    """Interface of `LengthScaling`, for custom scaling rules."""

    def factors(self, batch: Sequence[Completion]) -> list[float]:
        """Return one factor in [0, 1] per completion, in order."""


def factors_of_accepted(
    scaling: Scales, batch: Sequence[Completion], verdicts: Sequence[Verdict]
) -> list[float]:
    """Return the factors of a batch; rejected completions get 1 and are left out of comparisons.

    They earn no reward and set no standard; otherwise an attacker could make everyone else's
    answers look long by adding a few words of junk to a group.
    """
    kept = [i for i, verdict in enumerate(verdicts) if not verdict.rejected]
    found = [1.0] * len(batch)
    for i, factor in zip(kept, scaling.factors([batch[i] for i in kept]), strict=True):
        found[i] = factor
    return found
