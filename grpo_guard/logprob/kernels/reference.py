"""The same statistics in float64 from full logits: slow, obvious, what the others must match."""

from __future__ import annotations

import numpy as np

from grpo_guard.logprob.stats import FLATTENINGS, LARGEST_TOP_K, Floats, Ints, TokenStats
from grpo_guard.sampling import SamplingSpec, support_mask


def reference_stats(
    logits: Floats, targets: Ints, spec: SamplingSpec, seen: np.ndarray | None = None
) -> TokenStats:
    """Statistics of each row's target.

    Args:
        logits: Raw logits, shape [n, V].
        targets: Token ids, shape [n].
        spec: The declared sampler.
        seen: Tokens of the prefix, boolean, shape [n, V]; needed with a repetition penalty.
    """
    z = np.asarray(logits, dtype=np.float64)
    if seen is not None and spec.repetition_penalty != 1.0:
        penalised = np.where(z > 0, z / spec.repetition_penalty, z * spec.repetition_penalty)
        z = np.where(seen, penalised, z)
    rows = np.arange(len(targets))
    logit = z[rows, targets]
    scaled = z / spec.temperature
    log_p = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    p = np.exp(log_p)
    own = log_p[rows, targets]
    above = log_p > own[:, None]
    k = spec.top_k if 0 < spec.top_k <= LARGEST_TOP_K else z.shape[-1]
    members = -np.sort(-log_p, axis=-1)[:, :k]
    kept = np.where(support_mask(logits, spec, seen=seen), z, np.inf)
    return TokenStats(
        logprob=own,
        max_logprob=log_p.max(-1),
        rank=above.sum(-1),
        mass_above=np.where(above, p, 0.0).sum(-1),
        tail_mass=np.where(above, 0.0, p).sum(-1),
        entropy=-(p * np.where(p > 0, log_p, 0.0)).sum(-1),
        log_set_mass=np.logaddexp.reduce(members, axis=-1),
        log_flat_mass=np.stack(
            [np.logaddexp.reduce(b * members, axis=-1) for b in FLATTENINGS], axis=-1
        ),
        in_set=above.sum(-1) < members.shape[-1],
        logit=logit,
        edge_gap=np.maximum(0.0, kept.min(-1) - logit),
    )
