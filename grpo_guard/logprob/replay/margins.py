"""Compute how far a claimed token is from the token drawn by the coin.

A token's margin is the amount, in raw logits, by which another token in the support beats it in
score + noise. For an honest token it is 0 apart from numerical drift, which shifts scores, and
hence margins, slightly. Drift also shifts the *edge* of the support, and a token kept by one side
but cut by the other would cause a margin of whole logits. So only tokens that stay in the support
even when scores shift slightly count as competitors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.support import min_p_first, renormalises
from grpo_guard.logprob.noise import Family, gumbel, noise_position, signed

# Margin of a token that misses the draw only because of exactly where the edge of the support lies:
# a mismatch of unknown size.
EDGE_MARGIN = 1e-6


@dataclass(frozen=True, slots=True)
class Replay:
    """Settings for replaying a coin in a scoring pass; the seeds come with the sequences."""

    family: Family = "grpo-guard"
    edge_logits: float = 0.25  # tokens whose raw logits are closer than this may have swapped
    edge_mass: float = 0.02  # top-p may have cut at least this much probability earlier


@dataclass(frozen=True, slots=True)
class RowReplay:
    """The settings of a `Replay`, with seeds and positions for N rows."""

    settings: Replay
    seeds: Tensor  # int64 with the bits of the unsigned seeds, [N]
    positions: Tensor  # `noise.noise_position`, [N]

    def rows(self, index: Tensor) -> "RowReplay":
        return RowReplay(self.settings, self.seeds[index], self.positions[index])


def rows_of(settings: Replay, sequences: Sequence[Encoded], device: torch.device) -> RowReplay:
    """Return the concatenated seeds and positions of all tokens in the sequences; raises ValueError
    if one has no seed."""
    seeds, positions = [], []
    for sequence in sequences:
        if sequence.seed is None:
            raise ValueError("sequences: expected a seed in each, got one without")
        t = torch.arange(len(sequence.completion_ids))
        seeds.append(torch.full_like(t, signed(sequence.seed)))
        positions.append(noise_position(settings.family, torch.tensor(len(sequence.prompt_ids)), t))
    return RowReplay(settings, torch.cat(seeds).to(device), torch.cat(positions).to(device))


def sure_top_p(spec: SamplingSpec, settings: Replay) -> float:
    """Return top-p, reduced by how far drift can move its edge, in probability."""
    return min(spec.top_p - settings.edge_mass, _shifted(spec, -settings.edge_logits))


def edge_width(spec: SamplingSpec, settings: Replay) -> float:
    """Return how far drift can move the edge of the support beyond top-p, in probability."""
    if spec.top_p >= 1:
        return 0.0
    return _shifted(spec, settings.edge_logits) - spec.top_p


def _shifted(spec: SamplingSpec, logits: float) -> float:
    """Return the top-p mass after the raw logits on one side of the edge move by ``logits``.

    The log-odds of the mass p move by d = logits / temperature, so p moves by p (1 - p) d to first
    order, most of all in the middle.
    """
    odds = math.log(spec.top_p / (1 - spec.top_p)) + logits / spec.temperature
    return 1 / (1 + math.exp(-odds))


class Margins(NamedTuple):
    """The margin of each of N rows, and the token that the replay draws for it.

    A margin of `EDGE_MARGIN` means that no sure competitor wins, but another token is still drawn.
    """

    margin: Tensor  # raw logits, >= 0
    drawn: Tensor  # int64


def replay_margins(
    values: Tensor,
    tokens: Tensor,
    own: Tensor,
    targets: Tensor,
    log_normaliser: Tensor,
    replay: RowReplay,
    spec: SamplingSpec,
    *,
    vocab_size: int,
) -> Margins:
    """Compute the margin of each row's target.

    Args:
        values, tokens: The K largest scores of each row in descending order, and their ids, -1 for
            missing ones, shape [N, K].
        own, targets, log_normaliser: The target's score and id; log sum exp of all scores, [N].
        replay, spec: Seeds and positions; the declared sampler, whose temperature and penalty are
            already in the scores.
    """
    settings, seeds, positions = replay.settings, replay.seeds, replay.positions
    noise = gumbel(seeds[:, None], positions[:, None], tokens.clamp_min(0), settings.family)
    complete = values.shape[-1] >= vocab_size
    real, mine = values > -torch.inf, tokens == targets[:, None]
    surely = surely_kept(values, log_normaliser, spec, settings, complete=complete) & real
    perturbed = torch.where(surely & ~mine, values + noise, -torch.inf)
    best, index = perturbed.max(-1)
    own_perturbed = own + gumbel(seeds, positions, targets, settings.family)
    margin = (best - own_perturbed) * spec.temperature
    margin = torch.where(best > -torch.inf, margin.clamp_min(0.0), 0.0)
    margin = torch.where(own == -torch.inf, torch.inf, margin)
    nominal, seen = _nominal_draw(
        values, tokens, noise, own, targets, log_normaliser, spec, complete
    )
    # If only the exact edge makes the difference, the size of the margin is unknown, but the token
    # does not count as a match. Otherwise tokens at the edge could be chosen for free.
    margin = torch.where((margin == 0) & seen & (nominal != targets), EDGE_MARGIN, margin)
    beaten = torch.where(margin > EDGE_MARGIN, tokens.gather(-1, index[:, None])[:, 0], nominal)
    return Margins(margin, torch.where(margin > 0, beaten, targets))


def _nominal_draw(
    values: Tensor,
    tokens: Tensor,
    noise: Tensor,
    own: Tensor,
    targets: Tensor,
    log_normaliser: Tensor,
    spec: SamplingSpec,
    complete: bool,
) -> tuple[Tensor, Tensor]:
    """Draw from exactly these scores, [N], and mark the rows whose candidates suffice for a
    decision. ``noise`` is the candidates', [N, K]; if ``complete``, they are the whole vocabulary.
    """
    kept = exactly_kept(values, log_normaliser, spec) & (values > -torch.inf)
    best = torch.where(kept, values + noise, -torch.inf).argmax(-1, keepdim=True)
    # A target beyond the candidates is outside the support only if they contain all of the support.
    seen = (tokens == targets[:, None]).any(-1)
    if 0 < spec.top_k < values.shape[-1]:
        seen |= own < values[:, -1]
        if spec.top_p < 1:  # ties with the k-th count in the nucleus and may extend beyond the list
            seen &= values[:, spec.top_k - 1] != values[:, -1]
    elif not complete and (spec.top_k > 0 or min_p_first(spec)):
        seen &= spec.top_p >= 1  # otherwise the mass over which the engine renormalises is unknown
    return tokens.gather(-1, best)[:, 0], seen


def surely_kept(
    values: Tensor,
    log_normaliser: Tensor,
    spec: SamplingSpec,
    settings: Replay,
    *,
    complete: bool,
) -> Tensor:
    """Mark the candidates that every honest node keeps, boolean, [N, K]: drift is allowed for by
    judging each as if all others close to it were above it."""
    kept = torch.ones_like(values, dtype=torch.bool)
    if not spec.truncates:
        return kept
    nearby = settings.edge_logits / spec.temperature
    # Number of candidates, itself included, whose score is at least this candidate's minus
    # ``nearby``.
    reach = torch.searchsorted(-values, -(values - nearby), right=True)
    if spec.top_k > 0:
        kept &= reach - 1 < spec.top_k
    if spec.min_p > 0:
        kept &= values >= values[:, :1] + math.log(spec.min_p) + nearby
    if spec.top_p < 1:
        p = (values - log_normaliser[:, None]).exp()
        above = p.cumsum(-1).gather(-1, reach - 1) - p
        mass = _renormaliser(values, p, spec, nearby)
        kept &= above < sure_top_p(spec, settings) * mass
    if not complete and (spec.top_k > 0 or spec.top_p < 1):
        kept &= reach < values.shape[-1]  # more close tokens may lie beyond the last candidate
    return kept


def exactly_kept(values: Tensor, log_normaliser: Tensor, spec: SamplingSpec) -> Tensor:
    """Mark the candidates the sampler would keep given exactly these scores, boolean, [N, K]."""
    everything = torch.ones_like(values, dtype=torch.bool)
    above = torch.searchsorted(-values, -values, right=False)  # number strictly above
    top_k = above < spec.top_k if spec.top_k > 0 else everything
    min_p = values >= values[:, :1] + math.log(spec.min_p) if spec.min_p > 0 else everything
    if spec.top_p >= 1:
        return top_k & min_p
    p = (values - log_normaliser[:, None]).exp()
    eligible = {"transformers": top_k, "vllm": top_k & min_p, "sglang": everything}[spec.engine]
    mass = torch.ones_like(p)
    if renormalises(spec):
        mass = torch.where(eligible, p, 0.0).sum(-1, keepdim=True)
    sums = torch.nn.functional.pad(p.cumsum(-1), (1, 0))
    return top_k & min_p & (sums.gather(-1, above) < spec.top_p * mass)


def _renormaliser(values: Tensor, p: Tensor, spec: SamplingSpec, nearby: float) -> Tensor:
    """Return the mass that top-p renormalises over, [N, 1]; at most that of any honest node."""
    eligible = torch.ones_like(values, dtype=torch.bool)
    if not renormalises(spec):
        return torch.ones_like(values[:, :1])
    if spec.top_k > 0:
        eligible[:, spec.top_k :] = False
    if min_p_first(spec):
        eligible &= values >= values[:, :1] + math.log(spec.min_p) + nearby
    return torch.where(eligible, p, 0.0).sum(-1, keepdim=True)
