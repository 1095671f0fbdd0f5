"""The same statistics in float64 from full logits: slow and obvious; the others must match it."""

import numpy as np

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.stats import (
    FLATTENINGS,
    LARGEST_TOP_K,
    LEADER_STRIDE,
    Floats,
    Ints,
    TokenStats,
    leader_block,
)
from tests.helpers.support import support_mask

# How close the fast forms must come.
EXACT = ("rank", "ties", "in_set")
CLOSE = {
    "logprob": 1e-4,
    "max_logprob": 1e-4,
    "mass_above": 1e-6,
    "tail_mass": 1e-6,
    "entropy": 1e-4,
    "log_set_mass": 1e-4,
    "log_flat_mass": 1e-4,
    "logit": 1e-4,
}


def reference_stats(
    logits: Floats,
    targets: Ints,
    spec: SamplingSpec,
    seen: np.ndarray | None = None,
    *,
    tie_margin: float = 0.0,
) -> TokenStats:
    """Statistics of each row's target.

    Args:
        logits: Raw logits, shape [n, V].
        targets: Token ids, shape [n].
        spec: The declared sampler.
        seen: Tokens of the prefix, boolean, shape [n, V]; needed with a repetition penalty.
        tie_margin: In raw logits.

    A target at -inf has no ties.
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
    members, in_set = _leaders(log_p, own, targets, spec.top_k)
    surprise = np.where(p > 0, -log_p, 0.0)
    kept = np.where(support_mask(logits, spec, seen=seen), z, np.inf)
    return TokenStats(
        logprob=own,
        max_logprob=log_p.max(-1),
        rank=above.sum(-1),
        mass_above=np.where(above, p, 0.0).sum(-1),
        tail_mass=np.where(above, 0.0, p).sum(-1),
        ties=np.maximum(0, (np.abs(z - logit[:, None]) <= tie_margin).sum(-1) - 1),
        entropy=(p * surprise).sum(-1),
        log_set_mass=_log_sum(members, 1.0),
        log_flat_mass=np.stack([_log_sum(members, b) for b in FLATTENINGS], axis=-1),
        in_set=in_set,
        logit=logit,
        edge_gap=np.maximum(0.0, kept.min(-1) - logit),
    )


def _leaders(log_p: Floats, own: Floats, targets: Ints, top_k: int) -> tuple[Floats, np.ndarray]:
    """Return log p on K (NaN elsewhere), and whether the target belongs to K."""
    if not 0 < top_k <= LARGEST_TOP_K:
        return log_p, np.ones(len(targets), dtype=bool)
    block, stride = leader_block(log_p.shape[-1]), LEADER_STRIDE
    padding = -log_p.shape[-1] % (block * stride)
    padded = np.pad(log_p, ((0, 0), (0, padding)), constant_values=-np.inf)
    blocks = padded.reshape(len(log_p), -1, block, stride)
    leaders = blocks.max(2).reshape(len(log_p), -1)
    k = min(top_k, leaders.shape[-1])
    edge = np.sort(leaders, axis=-1)[:, -k]
    rows = np.arange(len(targets))
    span, column = targets // (block * stride), targets % stride
    lowest = blocks[rows, span, :, column].argmax(-1)  # the first of equals
    in_set = (lowest == targets // stride % block) & (own >= edge)
    member = (leaders >= edge[:, None]) & (leaders > -np.inf)
    return np.where(member, leaders, np.nan), in_set


def _log_sum(log_p: Floats, b: float) -> Floats:
    """Return log sum p^b over K, where p^0 = 1: [n, V] with NaN outside K -> [n]."""
    members = np.zeros_like(log_p) if b == 0 else b * log_p
    terms = np.where(np.isnan(log_p), -np.inf, members)
    summed: Floats = np.logaddexp.reduce(terms, axis=-1)
    return summed
