"""The declared sampler, and the exact support it leaves, engine by engine.

Engines apply the same filters in different orders, and the order changes the nucleus (read in
transformers 5.23, vLLM 0.33 and SGLang 0.5.23):

* transformers: repetition penalty, temperature, top-k, top-p (renormalised after top-k), min-p
* vllm: repetition penalty, temperature, min-p, top-k, top-p (renormalised after both)
* sglang: penalties, temperature, then top-k and top-p jointly on the full distribution, then min-p

All three keep the token that crosses top-p; ties with the k-th logit are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Engine: TypeAlias = Literal["transformers", "vllm", "sglang"]


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """What every node is expected to sample with.

    Nothing is inherited from a model's ``generation_config``: engines do that silently
    (transformers falls back to top_k = 50, a vLLM server to the model's file), and a verifier that
    guessed would reject honest work. Engine, temperature, top_k and top_p must be said; the rest
    is off unless said.

    Args:
        engine: ``"transformers"``, ``"vllm"`` or ``"sglang"``: the order of the filters.
        temperature: > 0. Greedy decoding is ``top_k=1`` at any temperature.
        top_k: Keep the k most likely tokens; 0 = off.
        top_p: Keep the smallest set with this mass, in (0, 1]; 1 = off.
        min_p: Keep tokens with at least this share of the maximum probability, in [0, 1); 0 = off.
        repetition_penalty: > 0; 1 = off. Counted over prompt and completion.
        max_new_tokens: Longest completion in tokens including EOS; None = not declared.
        eos_token_ids: Ids that end a completion; empty = the tokenizer's EOS.

    Raises:
        ValueError: an argument is out of range.
    """

    engine: Engine
    temperature: float
    top_k: int
    top_p: float
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(
            "engine",
            "one of " + ", ".join(get_args(Engine)),
            self.engine in get_args(Engine),
            self.engine,
        )
        _check(
            "temperature",
            "a finite number > 0 (greedy decoding is top_k=1)",
            _finite(self.temperature) and self.temperature > 0,
            self.temperature,
        )
        _check(
            "top_k",
            "an integer >= 0 (0 = off)",
            _integer(self.top_k) and self.top_k >= 0,
            self.top_k,
        )
        _check(
            "top_p",
            "a number in (0, 1] (1 = off)",
            _finite(self.top_p) and 0 < self.top_p <= 1,
            self.top_p,
        )
        _check(
            "min_p",
            "a number in [0, 1) (0 = off)",
            _finite(self.min_p) and 0 <= self.min_p < 1,
            self.min_p,
        )
        _check(
            "repetition_penalty",
            "a finite number > 0 (1 = off)",
            _finite(self.repetition_penalty) and self.repetition_penalty > 0,
            self.repetition_penalty,
        )
        limit = self.max_new_tokens
        _check(
            "max_new_tokens",
            "an integer >= 1 or None",
            limit is None or (_integer(limit) and limit >= 1),
            limit,
        )
        ids = self.eos_token_ids
        _check(
            "eos_token_ids",
            "a sequence of integers >= 0",
            all(_integer(i) and i >= 0 for i in ids),
            ids,
        )
        object.__setattr__(self, "eos_token_ids", tuple(ids))

    @property
    def truncates(self) -> bool:
        """Whether any filter is on. Without one every token is in the support."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def support_mask(
    logits: NDArray[np.floating[Any]], spec: SamplingSpec, *, seen: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """The tokens that the declared sampler could emit: the obvious float64 form.

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
    # A token without any probability is never sampled; NaN stays for others to find.
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


def _check(name: str, expected: str, ok: bool, got: object) -> None:
    if not ok:
        raise ValueError(f"SamplingSpec.{name}: expected {expected}, got {got!r}")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
