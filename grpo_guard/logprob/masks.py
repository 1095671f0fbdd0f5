"""Check that the sampling mask sent with a completion is the declared sampler's.

At each position, the mask is compared with the declared sampler's support under the policy,
computed from the whole row of logits. Drift between engines moves tokens across the edge of the
support, so a token counts only if it is still on the wrong side after being moved towards the other
side by `MARGINS` times the drift profile's margin, with top-p moved by the mass margin.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.sampling_mask import SamplingMask
from grpo_guard.core.verdict import Finding
from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.kernels.scores import RepetitionPenalty, head_of, scores_of
from grpo_guard.logprob.kernels.support import full_rows, min_p_first, whole_rows
from grpo_guard.logprob.profile import DriftProfile

MARGINS: Final = 2.0  # a token can drift one way and the tokens at the edge the other


def rows_scorer(scorer: Any) -> Any:
    """Return the `TransformersScorer` behind a scorer, or None if there is none."""
    found = getattr(scorer, "own", scorer)
    return found if hasattr(found, "plain_states") and hasattr(found, "model") else None


def false_places(
    scorer: Any,
    encoded: Encoded,
    mask: SamplingMask,
    sampling: SamplingSpec,
    profile: DriftProfile,
) -> Iterator[Finding]:
    """Yield findings, in order, for positions where a whole completion's mask differs from the
    declared sampler's; ``scorer`` must come from `rows_scorer`."""
    for rows, scores in _rows(scorer, encoded, sampling):
        inside, outside, shares = _sides(scores, sampling, profile)
        for i, place in enumerate(rows.tolist()):
            kept = mask.kept[place]
            if not kept:
                continue
            named = torch.zeros_like(inside[i])
            named[torch.tensor(kept, device=named.device)] = True
            left_out, added = inside[i] & ~named, outside[i] & named
            if bool(left_out.any()):
                token, does = _likeliest(left_out, shares[i]), "leaves out"
                how = f"draws with probability {float(shares[i, token]):.3g}"
            elif bool(added.any()):
                token, does, how = _likeliest(added, shares[i]), "names", "never draws"
            else:
                continue
            yield Finding(
                "claimed_mask",
                f"its sampling mask {does} token {token}, which the declared sampler {how}",
                token_span=(place, place + 1),
            )


def _likeliest(among: Tensor, shares: Tensor) -> int:
    return int(torch.where(among, shares, -1.0).argmax())


def _rows(scorer: Any, encoded: Encoded, sampling: SamplingSpec) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield positions and scores (logits / temperature), a few rows at a time: [R], [R, V]."""
    states: Tensor = scorer.plain_states(encoded)
    head = head_of(scorer.model)
    pairs = [(encoded.prompt_ids, encoded.completion_ids)]
    penalty = RepetitionPenalty.of(
        sampling.repetition_penalty, pairs, head.vocab_size, states.device
    )
    places = torch.arange(len(states), device=states.device)
    for rows in torch.split(places, full_rows(head.vocab_size)):
        with torch.no_grad():
            own = penalty.rows(rows) if penalty else None
            scores = scores_of(states[rows], head, sampling.temperature, own)
            yield rows, whole_rows(scores, rows)


def _sides(
    scores: Tensor, sampling: SamplingSpec, profile: DriftProfile
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which tokens the sampler keeps and which it drops regardless of drift, plus each
    token's probability under the sampler. Scores are logits / temperature; [R, V] each."""
    ranked, order = scores.double().sort(-1, descending=True)
    size = ranked.shape[-1]
    drift = _drift(ranked, sampling.temperature, profile)
    weights = (ranked - ranked[:, :1]).exp()
    mass = torch.cat([torch.zeros_like(weights[:, :1]), weights.cumsum(-1)], -1)
    k = sampling.top_k if 0 < sampling.top_k < size else size
    whole = _renormalised(ranked, weights, mass, k, sampling)
    # Number of tokens, and hence mass, above each token once it is moved down or up.
    lowered = torch.searchsorted(-ranked, -(ranked - drift))
    raised = torch.searchsorted(-ranked, -(ranked + drift))
    inside, outside = lowered - 1 < k, raised >= k
    if sampling.top_p < 1:
        spare = min(profile.mass_margin, (1 - sampling.top_p) / 2)
        above = mass.gather(-1, lowered) - weights
        inside &= above < (sampling.top_p - spare) * whole
        outside |= mass.gather(-1, raised) >= (sampling.top_p + spare) * whole
    if sampling.min_p > 0:
        least = ranked[:, :1] + math.log(sampling.min_p)
        inside &= ranked - drift >= least
        outside |= ranked + drift < least
    back = order.argsort(-1)
    # A token that no sampler can draw is always outside.
    closed = ranked == -torch.inf
    return (
        (inside & ~closed).gather(-1, back),
        (outside | closed).gather(-1, back),
        (weights / whole).gather(-1, back),
    )


def _drift(ranked: Tensor, temperature: float, profile: DriftProfile) -> Tensor:
    """Return how far each score could have drifted, [R, V]; a logit of -inf counts as 0."""
    finite = torch.where(ranked.isfinite(), ranked, 0.0)
    margins = profile.margins((finite * temperature).cpu().numpy())
    return torch.as_tensor(margins, device=ranked.device) * (MARGINS / temperature)


def _renormalised(
    ranked: Tensor, weights: Tensor, mass: Tensor, k: int, sampling: SamplingSpec
) -> Tensor:
    """Return the mass that top-p applies to, [R, 1], which depends on the engine."""
    if sampling.engine == "sglang":
        return mass[:, -1:]
    if min_p_first(sampling):
        least = ranked[:, :1] + math.log(sampling.min_p)
        weights = torch.where(ranked >= least, weights, 0.0)
    return weights[:, :k].sum(-1, keepdim=True)
