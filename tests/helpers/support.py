"""The exact support that a declared sampler leaves: the obvious float64 form, for tests."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.sampling import SamplingSpec


def support_mask(
    logits: NDArray[np.floating[Any]], spec: SamplingSpec, *, seen: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """The tokens that the declared sampler could emit.

    Args:
        logits: Raw logits, shape [..., V].
        spec: The declared sampler.
        seen: Tokens of the prompt and the completion so far, boolean, shape [..., V]; needed only
            with a repetition penalty.

    Returns:
        Boolean mask, shape [..., V].
    """
    z = np.asarray(logits, dtype=np.float64)
    if spec.repetition_penalty != 1.0 and seen is not None:
        penalised = np.where(z > 0, z / spec.repetition_penalty, z * spec.repetition_penalty)
        z = np.where(seen, penalised, z)
    z = z / spec.temperature
    # A token with zero probability is never sampled; NaN is left for others to find.
    everything: NDArray[np.bool_] = np.not_equal(z, -np.inf)
    top_k = everything
    if 0 < spec.top_k < z.shape[-1]:
        kth = np.partition(z, -spec.top_k, axis=-1)[..., -spec.top_k, None]
        top_k = everything & (z >= kth)
    min_p = z >= z.max(-1, keepdims=True) + math.log(spec.min_p) if spec.min_p > 0 else everything
    if spec.top_p >= 1:
        return top_k & min_p
    eligible = {"transformers": top_k, "vllm": top_k & min_p, "sglang": everything}[spec.engine]
    mask: NDArray[np.bool_] = top_k & min_p & _nucleus(z, eligible, spec.top_p)
    return mask


def _nucleus(
    z: NDArray[np.float64], eligible: NDArray[np.bool_], top_p: float
) -> NDArray[np.bool_]:
    """Tokens whose strictly more likely rivals hold less than top_p of the eligible mass."""
    weights = np.where(eligible, np.exp(z - z.max(-1, keepdims=True)), 0.0)
    order = np.argsort(-z, axis=-1, kind="stable")
    ranked = np.take_along_axis(weights, order, -1)
    mass_above = np.cumsum(ranked, -1) - ranked
    kept = mass_above < top_p * weights.sum(-1, keepdims=True)
    mask = np.zeros(z.shape, dtype=np.bool_)
    np.put_along_axis(mask, order, kept, -1)
    return np.logical_and(mask, eligible)
