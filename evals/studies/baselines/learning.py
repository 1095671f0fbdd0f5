"""Other ways to learn from a round: remedies that need no verifier, or only its findings.

A defence selects one as its `Member`; no other part of a swarm depends on it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from grpo_guard.content.answers import numbers_in, tagged
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.grpo import MIN_SIGMA, Weighted, by_scale, of_groups
from grpo_guard.evals.swarm.honest import Member, Spans
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.tasks.base import Task

FLIPPED: Final = 0.25
"""Share of the worthless completions that `NoiseCorrected` assumes to be rewarded: the share of
malicious nodes in the paper."""
# Half, the best in SAPO (arXiv 2509.08721): 4 local and 4 external rollouts.
_LOCAL_SHARE: Final = 0.5
# An honest token of a policy that samples from its top 50 is seldom less likely than this.
_IMPROBABLE: Final = 0.02
# Nats per completion. F-TIS uses 50, and 5 or 10 for small models in early rounds.
_FILTER_KL: Final = 10.0


class MedianBaseline(Member):
    """(r - median) / MAD, after MC-GRPO (arXiv 2601.22582).

    Simplified: there is no further sample to make the group odd, so the median may lie between two
    rewards; and a MAD of 0, usual with binary rewards, counts as 1, while the authors' code divides
    by 0.001.
    """

    def advantages(self, rewards: Tensor, kept: Tensor) -> Tensor:
        """Use each group's median."""
        return by_median(rewards, kept)


class NoiseCorrected(Member):
    """Assumes rewards to be flipped with known chances, after arXiv 2510.18924."""

    def advantages(self, rewards: Tensor, kept: Tensor) -> Tensor:
        """Use the estimated true rewards of each group."""
        return by_true_rewards(rewards, kept)


class LocalShare(Member):
    """Trains on all of its own completions and as many of the others'; see `local_share`."""

    apart = True

    def taken(self, iteration: int, submitted: Sequence[Submitted]) -> Sequence[Submitted]:
        """Select all of its own completions and a random part of the others'."""
        own = f"node-{self.nodes[0]}"
        rng = self.terms.rng(iteration, f"{own}-others")
        return local_share(submitted, own, self.terms.config, rng)


class OwnMajority(Member):
    """The answer that most of a node's own samples give counts as right; see `own_majority`.

    Records and attackers still use the task's reward.
    """

    apart = True

    def earned(self, submitted: Sequence[Submitted]) -> list[float]:
        """Reward by the vote of the node's own samples."""
        return own_majority(submitted, f"node-{self.nodes[0]}", self.terms.task)


class MaskSpans(Member):
    """A rejected completion whose verdict names tokens keeps its reward and loses only those.

    Others are treated according to ``on_reject``.
    """

    def left_out(self, verdict: Verdict) -> Spans:
        """Return the token spans that a rejection names, if any."""
        if not verdict.rejected:
            return ()
        return tuple(found.token_span for found in verdict.findings if found.token_span is not None)


class CapImprobable(Member):
    """Tokens that the local policy finds improbable have their positive updates scaled down."""

    def reweighed(self, weight: Tensor, logprobs: Tensor, part: Sequence[Weighted]) -> Tensor:
        """Multiply by probability / 0.02 if that is below 1."""
        return capped(weight, logprobs, _IMPROBABLE)


class FTIS(Member):
    """Filtering and truncated importance sampling; see `OffPolicy`."""

    def reweighed(self, weight: Tensor, logprobs: Tensor, part: Sequence[Weighted]) -> Tensor:
        """Multiply by the factors of `OffPolicy`."""
        return weight * OffPolicy(_FILTER_KL).factors(logprobs, part)


def by_median(rewards: Tensor, kept: Tensor) -> Tensor:
    """Advantages of `MedianBaseline`, shapes as in `swarm.grpo.advantages`."""
    _, sigma = of_groups(rewards, kept)
    centred = (rewards - _median(rewards, kept)) * kept
    spread = _median(centred.abs(), kept)
    return by_scale(centred, sigma, torch.where(spread > MIN_SIGMA, spread, 1.0))


def by_true_rewards(rewards: Tensor, kept: Tensor) -> Tensor:
    """Advantages of `NoiseCorrected`, shapes as in `swarm.grpo.advantages`.

    Rewards are flipped from 0 to 1 with probability `FLIPPED` and never from 1 to 0, and
    (r - `FLIPPED`) / (1 - `FLIPPED`) is an unbiased estimate of the true one. A constant correction
    leaves (r - mean) / sigma unchanged; we therefore take sigma, too, to be that of the true
    rewards, of which a share of p = (mean - `FLIPPED`) / (1 - `FLIPPED`) is 1: sqrt(p (1 - p)). If
    p is not positive, flips explain all rewards of the group, and it gets 0. Simplified: the chance
    is declared instead of estimated on labelled answers. Meant for rewards of 0 and 1.
    """
    mean, sigma = of_groups(rewards, kept)
    true = (mean - FLIPPED) / (1 - FLIPPED)
    scale = (1 - FLIPPED) * (true * (1 - true)).clamp(min=0).sqrt()
    return by_scale((rewards - mean) * kept, sigma, scale)


def _median(values: Tensor, kept: Tensor) -> Tensor:
    """Median of each row's kept values, [B, 1]; 0 if none are kept."""
    seen = values.masked_fill(~kept, torch.nan)
    return seen.nanquantile(0.5, dim=1, keepdim=True).nan_to_num(0.0)


def capped(weight: Tensor, logprobs: Tensor, below: float) -> Tensor:
    """Multiply positive weights by probability / ``below`` if that is below 1."""
    factor = (logprobs.exp() / below).clamp(max=1.0)
    return torch.where(weight > 0, weight * factor, weight)


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Filtering and truncated importance sampling, as in F-TIS (arXiv 2605.22537).

    Each token is weighted by min(pi / pi_gen, ``most_ratio``), and a completion is left out if its
    advantage is negative and KL(pi || pi_gen) is above ``most_kl``. pi_gen is what the sender
    *claims*; without a claim the ratio is 1. Positive advantages are kept however far off the
    policy their completions are, so this is no defence against poison, and a lie about pi_gen costs
    nothing.

    Args:
        most_kl: In nats over a whole completion, estimated on its tokens as the sum of
            r log r - (r - 1) with r = pi / pi_gen. The source names g = 50 and no estimator; the
            sum is our reading.
        most_ratio: C of the source.
    """

    most_kl: float
    most_ratio: float = 2.0

    def factors(self, logprobs: Tensor, part: Sequence[Weighted]) -> Tensor:
        """Return a factor for the weight of each token of ``part``, concatenated, [n].

        ``logprobs`` [n] are the local policy's.
        """
        found, first = torch.ones_like(logprobs), 0
        for item in part:
            here = slice(first, first + len(item.ids))
            first += len(item.ids)
            if item.claimed is None:
                continue
            # A claim may be anything: beyond e^20 a ratio is as good as infinite.
            gap = (logprobs[here] - logprobs.new_tensor(item.claimed)).nan_to_num(0.0)
            gap = gap.clamp(-20.0, 20.0)
            ratio = gap.exp()
            distance = float((ratio * gap - (ratio - 1)).sum())
            if item.advantage < 0 and distance > self.most_kl:
                found[here] = 0.0
            else:
                found[here] = ratio.clamp(max=self.most_ratio)
        return found


def local_share(
    submitted: Sequence[Submitted],
    own: str,
    config: SwarmConfig,
    rng: random.Random,
    share: float = _LOCAL_SHARE,
) -> list[Submitted]:
    """Return the round as seen by a node that trains on its own and some of the others' work.

    After SAPO (arXiv 2509.08721): a training set of I local and J external rollouts, J such that
    I is ``share`` of both. Horizontal: among the completions of each group. Vertical: among whole
    groups. What is not drawn counts as withheld. Simplified: SAPO leaves out external groups
    without advantage before it draws; here all are eligible.
    """
    size = config.group_size
    vertical = config.setting == "vertical"
    units: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for place, item in enumerate(submitted):
        units[0 if vertical else place // size, item.completion.node == own].append(place)
    drawn = set[int]()
    for (unit, mine), places in units.items():
        if mine:
            drawn.update(places)
            continue
        sent = [place for place in places if not submitted[place].withheld]
        wanted = round(len(units.get((unit, True), ())) * (1 - share) / share)
        if vertical:
            groups = sorted({place // size for place in sent})
            chosen = rng.sample(groups, min(len(groups), wanted // size))
            drawn.update(place for place in sent if place // size in chosen)
        else:
            drawn.update(rng.sample(sent, min(len(sent), wanted)))
    return [
        item if place in drawn else replace(item, withheld=True)
        for place, item in enumerate(submitted)
    ]


def own_majority(submitted: Sequence[Submitted], own: str, task: Task) -> list[float]:
    """Reward by vote: the most frequent answer among a node's own samples of the prompt is right.

    The first given wins a tie. Without a sample of its own that gives a number in ``<answer>``,
    nothing in a group is right: this applies to groups of others in the vertical setting, and to
    tasks that ask for programs. As in training without references (TTRL, arXiv 2504.16084), except
    that votes of others do not count.
    """
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in submitted:
        if item.completion.node == own and not item.withheld:
            said = _answer(item.completion.text)
            if said is not None:
                votes[item.completion.prompt_text][said] += 1
    winners = {prompt: count.most_common(1)[0][0] for prompt, count in votes.items()}
    return [
        task.reward(item.completion.text, winners[item.completion.prompt_text])
        if item.completion.prompt_text in winners
        else 0.0
        for item in submitted
    ]


def _answer(text: str) -> str | None:
    """The first number of the first answer block."""
    for block in tagged(text):
        for number in numbers_in(block.content):
            return str(number if number.denominator == 1 else float(number))
    return None
