"""What a node's completions of one batch say together.

Poison that one completion cannot show is the same in all of a node's completions, or at least
improbable in all of them. Two e-values look at that: numbers of mean at most 1 if the node sampled
honestly, each prompt by itself, so that large ones convict (Vovk and Wang, arXiv 1912.06116).

* *Sum*: each completion has an e-value of its own, from its tokens. Those of one prompt are
  averaged, since they may depend on each other in any way; those of different prompts multiply.
* *Repeated stretches*: two completions to different prompts hold the same k tokens w. Take one of
  them, the leader, as given. The chance that another one has w at position s is the product q_s(w)
  of its conditional probabilities there, so the sum of share_s / q_s(w) over its positions with w
  has mean at most 1 for any shares that add up to 1 and are fixed beforehand. These multiply over
  prompts, for each window of the leader, and are averaged over windows, lengths and leaders. A
  shared beginning is the case of s = 0. Nothing has to be known of w, nor be improbable by itself.

Not every completion needs to be poisoned: each factor e is used as 1 - b + b e, averaged over a few
stakes b. What the tests need is that a node's answers to different prompts are independent: a node
that gives each prompt the same seed draws alike on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_guard.logprob.shares import falling_shares
from grpo_guard.logprob.stats import FLATTENINGS, LARGEST_TOP_K, Floats, TokenStats
from grpo_guard.sampling import SamplingSpec

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
STAKES = (0.5, 0.1, 0.02)


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion of a node.

    Args:
        prompt: Equal for completions of one prompt.
        ids: Its tokens, shape [n], n >= 1.
        log_probs: Of each token under the declared sampler, at least what they are; shape [n].
        log_e: Logarithm of its own e-value.
    """

    prompt: Hashable
    ids: tuple[int, ...]
    log_probs: Floats
    log_e: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens of one completion that stand in answers to other prompts too.

    Args:
        span: Where, half open.
        prompts: In answers to how many prompts.
    """

    span: tuple[int, int]
    prompts: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one node's batch says.

    Args:
        log_e: Logarithm of the e-value of both tests.
        stretches: By completion, the longest stretch that speaks against it by itself.
    """

    log_e: float
    stretches: Mapping[int, Stretch]


def together(answers: Sequence[Answer]) -> Batch:
    """The e-value of one node's completions.

    Linear in the number of tokens, but for sorting them.

    Args:
        answers: Of one node and one batch, at least one.
    """
    numbers: dict[Hashable, int] = {}
    prompts = np.array([numbers.setdefault(answer.prompt, len(numbers)) for answer in answers])
    counts = np.bincount(prompts)
    own = np.full(len(counts), -np.inf)
    np.logaddexp.at(own, prompts, [answer.log_e for answer in answers])
    summed = _mean_over_stakes(_staked(own - np.log(counts)).sum(axis=1, keepdims=True))
    total, stretches = 0.0, dict[int, Stretch]()
    if len(counts) > 1:  # else nothing can be repeated, and an e-value of 1 says nothing
        total = -math.inf
        for places in _places(answers):
            repeated, found = _repeated(places, answers, prompts, counts)
            total = float(np.logaddexp(total, repeated))
            stretches |= found
    return Batch(float(np.logaddexp(summed[0], total)) - math.log(2), stretches)


def sampler_log_probs(stats: TokenStats, spec: SamplingSpec, drift: float, least: float) -> Floats:
    """At least the log-probs that the declared sampler gave the tokens, shape [n].

    Truncation gives what is kept the mass of what is cut; so much at least is kept.

    Args:
        stats: Of the tokens, under the temperature and before truncation.
        spec: The declared sampler.
        drift: What is allowed for drift, in nats at the declared temperature.
        least: Probabilities below this count as this: how small they look depends on drift.
    """
    if not math.isfinite(drift):
        return np.zeros(len(stats))  # nothing is claimed of any token
    kept = np.zeros(len(stats))
    if spec.truncates:
        kept = stats.max_logprob
        if not spec.min_p and spec.top_k <= LARGEST_TOP_K:
            kept = np.maximum(kept, _of_top_k(stats, spec.top_k) + math.log(spec.top_p))
    log_probs: Floats = np.clip(stats.logprob - kept + drift, math.log(least), 0.0)
    return log_probs


def _of_top_k(stats: TokenStats, top_k: int) -> Floats:
    """At most the log mass of the k likeliest tokens, [n].

    The set K of the statistics holds k leaders and what ties with the last; the k largest of its
    tokens have at least their share of its mass, and the k likeliest of all no less.
    """
    if not top_k:
        return np.zeros(len(stats))
    log_size = stats.log_flat_mass[:, FLATTENINGS.index(0.0)]
    bound: Floats = stats.log_set_mass + np.minimum(math.log(top_k) - log_size, 0.0)
    return bound


def _staked(log_factors: Floats) -> Floats:
    """Logs of 1 - b + b e for each stake b, shape [m] -> [3, m]."""
    stakes = np.asarray(STAKES)[:, None]
    logs: Floats = np.logaddexp(np.log1p(-stakes), np.log(stakes) + log_factors)
    return logs


def _mean_over_stakes(logs: Floats) -> Floats:
    """Log of the mean of e-values, [3, m] -> [m]."""
    mean: Floats = np.logaddexp.reduce(logs, axis=0) - math.log(len(STAKES))
    return mean


@dataclass(frozen=True, slots=True)
class _Places:
    """Where stretches of one length stand that stand in two places or more, shape [m] each.

    Args:
        length: In tokens.
        texts: Number of the answer.
        starts: First token in it.
        gains: Log of share / probability.
        stretches: Number of the stretch: equal tokens, equal numbers.
    """

    length: int
    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    gains: Floats
    stretches: NDArray[np.int64]


def _places(answers: Sequence[Answer]) -> Iterator[_Places]:
    """Places of repeated stretches, length by length.

    Stretches of 2, 3, 4, 6 ... tokens are numbered by the numbers of their two parts, so that each
    length costs one sort. Only places where a stretch is less probable than its share are given:
    others say nothing, and leaving them out makes an e-value smaller.
    """
    lengths = np.array([len(answer.ids) for answer in answers])
    ids = np.concatenate([np.asarray(answer.ids, np.int64) for answer in answers])
    paths = np.concatenate([[0.0], np.cumsum(np.concatenate([a.log_probs for a in answers]))])
    texts = np.repeat(np.arange(len(answers)), lengths)
    starts = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    log_shares = np.log(falling_shares(int(lengths.max())))[starts]
    left = lengths[texts] - starts
    numbers = {1: _numbered(ids)}
    for length in LENGTHS:
        if length > 1:
            first = max(part for part in numbers if part < length)
            second = numbers[length - first]
            behind = np.append(second[first:], np.zeros(min(first, len(ids)), np.int64))
            numbers[length] = _numbered(numbers[first] * len(ids) + behind[: len(ids)])
        inside = np.flatnonzero(left >= length)
        gains = log_shares[inside] - (paths[inside + length] - paths[inside])
        inside, gains = inside[gains > 0], gains[gains > 0]
        number = numbers[length][inside]
        several = np.bincount(number, minlength=len(ids))[number] > 1
        if several.any():
            at = inside[several]
            yield _Places(length, texts[at], starts[at], gains[several], number[several])


def _numbered(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Equal keys as equal numbers from 0 on, [n] -> [n]."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _repeated(
    places: _Places,
    answers: Sequence[Answer],
    prompts: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[float, dict[int, Stretch]]:
    """Log e-value of the repeated stretches of one length, and those that alone have 1 or more."""
    order = np.lexsort((prompts[places.texts], places.stretches))
    texts, starts, stretch = places.texts[order], places.starts[order], places.stretches[order]
    gains, length = places.gains[order], places.length
    # One row per stretch and prompt: factor e of that prompt, and its weight as a leader.
    of_prompt = prompts[texts]
    rows = _starts((stretch, of_prompt))
    lengths = np.array([len(answer.ids) for answer in answers])
    windows = (lengths - length + 1)[texts] * counts[of_prompt]
    factors = np.logaddexp.reduceat(gains - np.log(counts[of_prompt]), rows)
    weights = np.add.reduceat(1 / windows, rows)
    groups = _starts((stretch[rows],))
    held = np.diff(np.append(groups, len(rows)))  # prompts of each stretch
    staked = _staked(factors)
    # Of a leader all other prompts count: those that hold it, and those that do not.
    sums = np.add.reduceat(staked, groups, axis=1)
    sums += (len(counts) - held) * np.log1p(-np.asarray(STAKES))[:, None]
    led = _mean_over_stakes(np.repeat(sums, held, axis=1) - staked) + np.log(weights)
    led = np.where(np.repeat(held, held) > 1, led, -np.inf)  # in one prompt it is no repetition
    scale = math.log(len(counts) * len(LENGTHS))
    log_e = np.logaddexp.reduceat(led, groups) - scale
    sizes = np.diff(np.append(np.searchsorted(stretch, stretch[rows][groups]), len(texts)))
    loud, prompts_of = np.repeat(log_e >= 0, sizes), np.repeat(held, sizes)
    found = {
        int(texts[i]): Stretch((int(starts[i]), int(starts[i]) + length), int(prompts_of[i]))
        for i in np.flatnonzero(loud)
    }
    return float(np.logaddexp.reduce(log_e)), found


def _starts(columns: tuple[NDArray[np.int64], ...]) -> NDArray[np.int64]:
    """Where each run of equal rows begins, rows being sorted."""
    changes = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)
