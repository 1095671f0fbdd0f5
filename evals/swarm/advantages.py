"""From the rewards of a group to its advantages: the paper's way, its code's, and two remedies."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from grpo_guard.evals.swarm.config import AdvantageName

# A group of equal rewards has sigma 0; float rounding must not turn that into an advantage.
_MIN_SIGMA: Final = 1e-6
FLIPPED: Final = 0.25
"""Share of what ought to earn nothing that is taken to be rewarded, for "noise_corrected": that of
malicious nodes in the paper."""


def advantages(
    rewards: Tensor, kept: Tensor | None = None, way: AdvantageName = "standard"
) -> Tensor:
    """The advantages of B groups of G completions, [B, G] like ``rewards``.

    ``kept`` (bool, [B, G]) marks the completions that count: the others have no part in any
    statistic and get advantage 0. A group whose kept rewards are equal, or that keeps fewer than
    two completions, gets 0 throughout.

    ``way``, where mean and sigma are those of a group, sigma over the population:

    - "standard": (r - mean) / sigma, as in the paper (arXiv 2511.09780).
    - "centred": r - mean, as in its authors' code, and in Dr. GRPO.
    - "median": (r - median) / MAD, after MC-GRPO (arXiv 2601.22582). Simplified: no further sample
      makes the group odd, so that the median may lie between two rewards; and MAD 0, which with
      binary rewards is the rule, counts as 1, where its authors' code divides by 0.001.
    - "noise_corrected": rewards are flipped with known chances, from 0 to 1 with `FLIPPED` and from
      1 to 0 never, and (r - `FLIPPED`) / (1 - `FLIPPED`) is an unbiased estimate of the true one,
      after arXiv 2510.18924. A constant correction leaves (r - mean) / sigma as it is; our reading
      is therefore that sigma, too, is that of the true rewards, of which a share of
      p = (mean - `FLIPPED`) / (1 - `FLIPPED`) is 1: sqrt(p (1 - p)). Where p is not positive, flips
      explain all rewards of the group, and it gets 0. Simplified: the chance is declared and not
      estimated on labelled answers. Meant for rewards of 0 and 1.
    """
    if rewards.ndim != 2:
        raise ValueError(f"rewards: expected shape [B, G], got {tuple(rewards.shape)}")
    if kept is None:
        kept = torch.ones_like(rewards, dtype=torch.bool)
    weight = kept.to(rewards.dtype)
    count = weight.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (rewards * weight).sum(dim=1, keepdim=True) / count
    centred = (rewards - mean) * weight
    sigma = (centred.square().sum(dim=1, keepdim=True) / count).sqrt()
    if way == "median":
        centred = (rewards - _median(rewards, kept)) * weight
        spread = _median(centred.abs(), kept)
        scale = torch.where(spread > _MIN_SIGMA, spread, 1.0)
    elif way == "noise_corrected":
        true = (mean - FLIPPED) / (1 - FLIPPED)
        scale = (1 - FLIPPED) * (true * (1 - true)).clamp(min=0).sqrt()
    else:
        scale = sigma if way == "standard" else torch.ones_like(sigma)
    tells = (sigma > _MIN_SIGMA) & (scale > _MIN_SIGMA)
    return torch.where(tells, centred / scale.clamp(min=_MIN_SIGMA), 0.0)


def _median(values: Tensor, kept: Tensor) -> Tensor:
    """The median of each row's kept values, [B, 1]; 0 where nothing is kept."""
    seen = values.masked_fill(~kept, torch.nan)
    return seen.nanquantile(0.5, dim=1, keepdim=True).nan_to_num(0.0)
