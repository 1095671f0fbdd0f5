"""The sampler under a public coin: draw the token in the support with the highest score + noise."""

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.support import support_edge
from grpo_guard.logprob.noise import FLIPS, Family, contenders, gumbel, hash_prefix, token_keys

# If rows keep at most this many tokens on average, noise is computed for all of them.
FEW = 1024
# Number of most likely tokens, which any other token has to beat.
LEADING = 32


def draw(
    scores: Tensor,
    seeds: Tensor,
    positions: Tensor,
    spec: SamplingSpec,
    family: Family = "grpo-guard",
) -> Tensor:
    """Draw one token per row, int64, [B]; ties go to the lowest id.

    Args:
        scores: (Penalised) logits / temperature, fp32, shape [B, V].
        seeds: int64 with the bits of the unsigned seeds (`noise.signed`), shape [B].
        positions: Each row's `noise.noise_position`, int64, shape [B].
        spec, family: The sampler, whose temperature and penalty are already in the scores; its
            noise.

    Raises:
        ValueError: a row has no tokens that can be drawn.
    """
    kept = scores > -torch.inf
    if spec.truncates:
        kept &= scores >= support_edge(scores, spec, spec.top_p)[:, None]
    if int(kept.sum()) > FEW * len(scores):
        kept &= _contenders(scores, seeds, positions, spec, family)
    rows, tokens = torch.nonzero(kept, as_tuple=True)
    noise = gumbel(seeds[rows], positions[rows], tokens, family)
    perturbed = scores[rows, tokens] + noise
    best = torch.full_like(scores[:, 0], -torch.inf)
    best.scatter_reduce_(0, rows, perturbed, "amax")
    won = perturbed == best[rows]
    drawn = torch.full_like(seeds, scores.shape[-1])
    drawn = drawn.scatter_reduce_(0, rows[won], tokens[won], "amin")
    if bool((drawn == scores.shape[-1]).any()):
        raise ValueError("scores: expected a number in each row, got only NaN or -inf in one")
    return drawn


def _contenders(
    scores: Tensor, seeds: Tensor, positions: Tensor, spec: SamplingSpec, family: Family
) -> Tensor:
    """Mark tokens that can still win, plus a few others, at one hash per token; boolean, [B, V].

    Let ``best`` be the highest score + noise of the most likely tokens. Another token can beat it
    only if its noise exceeds best - score, that is, if its hash is below about exp(score - best).
    """
    top = scores.topk(min(LEADING, scores.shape[-1]), -1)
    noise = gumbel(seeds[:, None], positions[:, None], top.indices, family)
    perturbed = top.values + noise
    if spec.truncates:  # every filter keeps the most likely token but may have cut the others
        perturbed = perturbed[:, :1]
    best = perturbed.amax(-1, keepdim=True)
    prefix = hash_prefix(seeds, positions, family)
    keys = token_keys(scores.shape[-1], scores.device)
    return contenders(scores, best[:, 0], prefix, keys, FLIPS[family])
