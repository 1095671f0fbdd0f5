"""Joint evidence from all of a node's completions in a batch.

Poison that goes unnoticed in a single completion is either identical across a node's completions or
at least improbable in all of them. Two e-values test for that. An e-value has mean at most 1 if the
node sampled each prompt honestly and independently, so a large value convicts (Vovk and Wang, arXiv
1912.06116).

* *Sum*: each completion has its own e-value, from its tokens. E-values for the same prompt can
  depend on each other in any way, so they are averaged; those for different prompts are multiplied.
* *Repeated stretches*: two completions for different prompts contain the same k tokens w. Take one
  of the two, the leader, as given. The probability that another completion has w at position s is
  q_s(w), the product of the conditional probabilities there. So the sum of share_s / q_s(w) over
  the positions with w has mean at most 1, for any shares that are fixed beforehand and add up to 1.
  For each window of the leader, the sums are multiplied over prompts; the products are averaged
  over windows, lengths and leaders. A shared beginning is the case s = 0. The test needs no
  knowledge of w, and w need not be improbable by itself.

Not every completion needs to be poisoned: each factor e is used as 1 - b + b e, averaged over a few
stakes b. The tests assume that a node's answers to different prompts are independent: a node that
uses the same seed for every prompt deliberately makes its draws alike.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.shares import falling_shares
from grpo_guard.logprob.stats import FLATTENINGS, LARGEST_TOP_K, Floats, TokenStats

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
STAKES = (0.5, 0.1, 0.02)


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion of a node, with n >= 1 tokens."""

    prompt: Hashable  # identical for completions of the same prompt
    ids: tuple[int, ...]
    log_probs: Floats  # upper bound on each token's log-prob under the declared sampler, [n]
    log_e: float  # logarithm of the completion's own e-value


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens of one completion that also occur in answers to other prompts."""

    span: tuple[int, int]  # half-open, in tokens
    prompts: int  # number of prompts whose answers contain the stretch


@dataclass(frozen=True, slots=True)
class Batch:
    log_e: float  # logarithm of the e-value of both tests
    stretches: Mapping[int, Stretch]
    """For each completion, the longest stretch that is evidence against it on its own."""


def batch_evidence(answers: Sequence[Answer]) -> Batch:
    """Weigh one node's answers in one batch, which must not be empty.

    Apart from sorting, the cost is linear in the number of tokens.
    """
    numbers: dict[Hashable, int] = {}
    prompts = np.array([numbers.setdefault(answer.prompt, len(numbers)) for answer in answers])
    counts = np.bincount(prompts)
    own = np.full(len(counts), -np.inf)
    np.logaddexp.at(own, prompts, [answer.log_e for answer in answers])
    summed = _mean_over_stakes(_staked(own - np.log(counts)).sum(axis=1, keepdims=True))
    total, stretches = 0.0, dict[int, Stretch]()
    if len(counts) > 1:  # with only one prompt, nothing can be repeated
        total = -math.inf
        for places in _places(answers):
            repeated, found = _repeated(places, answers, prompts, counts)
            total = float(np.logaddexp(total, repeated))
            stretches |= found
    return Batch(float(np.logaddexp(summed[0], total)) - math.log(2), stretches)


def sampler_log_probs(stats: TokenStats, spec: SamplingSpec, drift: float, least: float) -> Floats:
    """Return upper bounds on the tokens' log-probs under the declared sampler, shape [n].

    Truncation redistributes the mass of the cut tokens among the kept ones, so the bound divides by
    a lower bound on the kept mass. ``drift`` is allowed for, in nats at the declared temperature;
    probabilities below ``least`` are raised to it, because drift decides how small they look.
    """
    if not math.isfinite(drift):
        return np.zeros(len(stats))  # no token has a valid bound below 1
    kept = np.zeros(len(stats))
    if spec.truncates:
        kept = stats.max_logprob
        if not spec.min_p and spec.top_k <= LARGEST_TOP_K:
            kept = np.maximum(kept, _of_top_k(stats, spec.top_k) + math.log(spec.top_p))
    log_probs: Floats = np.clip(stats.logprob - kept + drift, math.log(least), 0.0)
    return log_probs


def _of_top_k(stats: TokenStats, top_k: int) -> Floats:
    """Return a lower bound on the log mass of the k most likely tokens, [n].

    The set K of the statistics holds k leaders plus any that tie with the last. The k most likely
    tokens in K have at least their proportional share of its mass, and the k most likely tokens in
    the whole vocabulary have no less.
    """
    if not top_k:
        return np.zeros(len(stats))
    log_size = stats.log_flat_mass[:, FLATTENINGS.index(0.0)]
    bound: Floats = stats.log_set_mass + np.minimum(math.log(top_k) - log_size, 0.0)
    return bound


def _staked(log_factors: Floats) -> Floats:
    """Return log(1 - b + b e) for each stake b, [m] -> [3, m]."""
    stakes = np.asarray(STAKES)[:, None]
    logs: Floats = np.logaddexp(np.log1p(-stakes), np.log(stakes) + log_factors)
    return logs


def _mean_over_stakes(logs: Floats) -> Floats:
    """Return the log of the mean of the e-values over stakes, [3, m] -> [m]."""
    mean: Floats = np.logaddexp.reduce(logs, axis=0) - math.log(len(STAKES))
    return mean


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of all stretches of one length that occur at least twice, shape [m] each."""

    length: int  # in tokens
    texts: NDArray[np.int64]  # index of the answer
    starts: NDArray[np.int64]  # index of the stretch's first token in the answer
    gains: Floats  # log of share / probability
    stretches: NDArray[np.int64]  # stretch number; identical tokens share a number


def _places(answers: Sequence[Answer]) -> Iterator[_Places]:
    """Yield the positions of repeated stretches, length by length.

    Stretches of 2, 3, 4, 6 ... tokens are numbered by combining the numbers of their two parts, so
    each length costs one sort. Only positions where a stretch is less probable than its share are
    kept: the others are no evidence, and dropping them can only lower the e-value.
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
    """Map equal keys to equal numbers from 0 on, [n] -> [n]."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _repeated(
    places: _Places,
    answers: Sequence[Answer],
    prompts: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[float, dict[int, Stretch]]:
    """Return the log e-value of the stretches, plus those whose own e-value is at least 1."""
    order = np.lexsort((prompts[places.texts], places.stretches))
    texts, starts, stretch = places.texts[order], places.starts[order], places.stretches[order]
    gains, length = places.gains[order], places.length
    # One row per stretch and prompt: the prompt's factor e, and its weight as a leader.
    of_prompt = prompts[texts]
    rows = _starts((stretch, of_prompt))
    lengths = np.array([len(answer.ids) for answer in answers])
    windows = (lengths - length + 1)[texts] * counts[of_prompt]
    factors = np.logaddexp.reduceat(gains - np.log(counts[of_prompt]), rows)
    weights = np.add.reduceat(1 / windows, rows)
    groups = _starts((stretch[rows],))
    held = np.diff(np.append(groups, len(rows)))  # prompts of each stretch
    staked = _staked(factors)
    # All prompts other than the leader's count, whether or not they contain the stretch.
    sums = np.add.reduceat(staked, groups, axis=1)
    sums += (len(counts) - held) * np.log1p(-np.asarray(STAKES))[:, None]
    led = _mean_over_stakes(np.repeat(sums, held, axis=1) - staked) + np.log(weights)
    led = np.where(np.repeat(held, held) > 1, led, -np.inf)  # no repetition within one prompt
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
    """Return the index at which each run of equal rows begins; the rows must be sorted."""
    changes = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)
