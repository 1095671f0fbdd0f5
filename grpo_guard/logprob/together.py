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
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_guard.logprob.shares import falling_shares
from grpo_guard.logprob.stats import LARGEST_TOP_K, Floats, TokenStats
from grpo_guard.sampling import SamplingSpec

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
STAKES = (0.5, 0.1, 0.02)


@dataclass(frozen=True, slots=True)
class Told:
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
    """Tokens that stand in several completions: which one, and from where to where."""

    text: int
    span: tuple[int, int]
    prompts: int
    """In how many prompts they stand."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one node's batch says.

    Args:
        log_e: Logarithm of the e-value of both tests.
        stretches: Repeated stretches that speak against it by themselves.
    """

    log_e: float
    stretches: tuple[Stretch, ...]


def together(texts: Sequence[Told]) -> Batch:
    """The e-value of one node's completions.

    Linear in the number of tokens, but for sorting them.

    Args:
        texts: Of one node and one batch, at least one.
    """
    numbers: dict[Hashable, int] = {}
    prompts = np.array([numbers.setdefault(text.prompt, len(numbers)) for text in texts])
    counts = np.bincount(prompts)
    own = np.full(len(counts), -np.inf)
    np.logaddexp.at(own, prompts, [text.log_e for text in texts])
    summed = _mean(_staked(own - np.log(counts)).sum(axis=1))
    repeated, stretches = _repeated(texts, prompts, counts)
    return Batch(float(np.logaddexp(summed, repeated)) - math.log(2), tuple(stretches))


def sampler_log_probs(stats: TokenStats, spec: SamplingSpec, drift: float, least: float) -> Floats:
    """At least the log-probs that the declared sampler gave the tokens, shape [n].

    Truncation gives what is kept the mass of what is cut; so much at least is kept.

    Args:
        stats: Of the tokens, under the temperature and before truncation.
        spec: The declared sampler.
        drift: What is allowed for drift, in nats at the declared temperature.
        least: Probabilities below this count as this: how small they look depends on drift.
    """
    kept = np.zeros(len(stats))
    if spec.truncates:
        kept = stats.max_logprob
        if not spec.min_p and spec.top_k <= LARGEST_TOP_K:
            of_top_k = stats.log_set_mass if spec.top_k else 0.0
            kept = np.maximum(kept, of_top_k + math.log(spec.top_p))
    log_probs: Floats = np.clip(stats.logprob - kept + drift, math.log(least), 0.0)
    return log_probs


def _staked(log_factors: Floats) -> Floats:
    """Logs of 1 - b + b e for each stake b, shape [m] -> [3, m]."""
    stakes = np.asarray(STAKES)[:, None]
    logs: Floats = np.logaddexp(np.log1p(-stakes), np.log(stakes) + log_factors)
    return logs


def _mean(logs: Floats) -> float:
    """Log of the mean over stakes, [3] -> number."""
    return float(np.logaddexp.reduce(logs)) - math.log(len(STAKES))


def _repeated(
    texts: Sequence[Told], prompts: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[float, list[Stretch]]:
    """Log e-value of the repeated stretches, and those that alone have one of at least 1."""
    if len(counts) < 2:
        return 0.0, []  # nothing to repeat; an e-value of 1 says nothing
    total, found = -math.inf, []
    scale = math.log(len(counts) * len(LENGTHS))
    for length in LENGTHS:
        for group in _groups(texts, prompts, length):
            log_e = _of_stretch(group, texts, prompts, counts, length) - scale
            total = float(np.logaddexp(total, log_e))
            if log_e >= 0:
                held = len({int(prompts[text]) for text, _, _ in group})
                found += [Stretch(text, (at, at + length), held) for text, at, _ in group]
    return total, found


Place = tuple[int, int, float]
"""Text, start, and log of share / probability there."""


def _groups(
    texts: Sequence[Told], prompts: NDArray[np.int64], length: int
) -> Iterator[list[Place]]:
    """Places of each stretch of ``length`` tokens that stands in two prompts or more.

    Only places where it is less probable than its share are looked at: others say nothing, and
    leaving them out makes an e-value smaller.
    """
    windows, rows = [], list[tuple[NDArray[np.int64], Floats]]()
    for number, text in enumerate(texts):
        n = len(text.ids) - length + 1
        if n < 1:
            continue
        paths = np.concatenate([[0.0], np.cumsum(text.log_probs)])
        ratios = np.log(falling_shares(n)) - (paths[length:] - paths[:-length])
        starts = np.flatnonzero(ratios > 0)
        ids = np.asarray(text.ids, np.int64)
        windows.append(np.lib.stride_tricks.sliding_window_view(ids, length)[starts])
        rows.append((np.stack([np.full(len(starts), number), starts]), ratios[starts]))
    if not windows:
        return
    stacked = np.concatenate(windows)
    places = np.concatenate([where for where, _ in rows], axis=1)
    ratios = np.concatenate([ratio for _, ratio in rows])
    for members in _equal_rows(stacked):
        if len(np.unique(prompts[places[0, members]])) > 1:
            yield [(int(places[0, i]), int(places[1, i]), float(ratios[i])) for i in members]


def _equal_rows(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The indices of each set of equal rows, where there are two or more; [m, k]."""
    order = np.lexsort(rows.T)
    ordered = rows[order]
    changes = np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1
    edges = np.concatenate([[0], changes, [len(rows)]])
    for run in np.flatnonzero(np.diff(edges) > 1):
        yield order[edges[run] : edges[run + 1]]


def _of_stretch(
    group: Sequence[Place],
    texts: Sequence[Told],
    prompts: NDArray[np.int64],
    counts: NDArray[np.int64],
    length: int,
) -> float:
    """Log e-value of one stretch, summed over its leaders."""
    factors: dict[int, float] = {}
    weights: dict[int, float] = {}
    for text, _, ratio in group:
        prompt = int(prompts[text])
        of_prompt = 1 / int(counts[prompt])
        before = factors.get(prompt, -math.inf)
        factors[prompt] = float(np.logaddexp(before, ratio + math.log(of_prompt)))
        windows = len(texts[text].ids) - length + 1
        weights[prompt] = weights.get(prompt, 0.0) + of_prompt / windows
    leaders = np.array(list(weights))
    logs = np.array([factors[leader] for leader in leaders])
    staked = _staked(logs)
    stakes = np.log1p(-np.asarray(STAKES))
    # All other prompts hold it or do not; the leader itself is given.
    others = staked.sum(axis=1, keepdims=True) - staked
    others += (len(counts) - len(leaders)) * stakes[:, None]
    means = np.logaddexp.reduce(others, axis=0) - math.log(len(STAKES))
    return float(np.logaddexp.reduce(means + np.log([weights[leader] for leader in leaders])))
