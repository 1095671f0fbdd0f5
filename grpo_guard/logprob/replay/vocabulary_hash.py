"""Compute the hash behind the noise for the whole vocabulary in one go, in 32-bit arithmetic."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grpo_guard.logprob.noise import DOMAIN, M32, Family, mixed

# Bits of the hash to flip per family: `noise.hashed` complements the hash for some families.
FLIPS = {"grpo-guard": 0, "vllm": 0, "sglang": -1}
# Allowance for rounding in the fixed-point logarithms and fp32.
SLACK = 1.001


def _int32(x: int) -> int:
    return x - 2**32 if x >= 2**31 else x


MIX, FIRST, SECOND = _int32(0xE6546B64), _int32(0x85EBCA6B), _int32(0xC2B2AE35)


def contenders(z: Tensor, best: Tensor, prefix: Tensor, keys: Tensor, flip: int) -> Tensor:
    """Mark the tokens whose noise lifts them above ``best``, plus a few others; boolean, [N, W].

    Noise above best - z means a hash below about exp(z - best). No step operates in place, so that
    a compiler can fuse the whole function.

    Args:
        z: Scores, fp32, [N, W].
        best: Score + noise to beat, [N].
        prefix: The rows' `hash_prefix`, [N].
        keys: The tokens' `token_keys`, [W].
        flip: The family's entry in `FLIPS`.
    """
    h = prefix[:, None] ^ keys
    h = ((h << 13) | ((h >> 19) & 0x1FFF)) * 5 + MIX
    h = h ^ 16
    h = (h ^ ((h >> 16) & 0xFFFF)) * FIRST
    h = (h ^ ((h >> 13) & 0x7FFFF)) * SECOND
    h = h ^ ((h >> 16) & 0xFFFF) ^ flip
    # The hash is signed here: flipping its top bit turns unsigned order into signed order, and
    # adding 2^31 restores the unsigned value.
    below = (h ^ -(2**31)).float() + 2.0**31
    # The 512 allows for rounding, because fp32 holds only 24 of the 32 bits.
    return below <= (z - best[:, None]).exp() * (SLACK * 2.0**32) + 512


def contender_counts(z: Tensor, best: Tensor, prefix: Tensor, keys: Tensor, flip: int) -> Tensor:
    """Count the `contenders` of each row, [N]."""
    return contenders(z, best, prefix, keys, flip).sum(-1)


def hash_prefix(seeds: Tensor, positions: Tensor, family: Family) -> Tensor:
    """Return the state of the hash before the token is mixed in, int32, [B]."""
    h = torch.full_like(seeds, DOMAIN[family])
    for key in (seeds & M32, (seeds >> 32) & M32, positions & M32):
        h = mixed(h, key)
    return _wrapped(h)


@functools.lru_cache(maxsize=4)
def token_keys(vocab_size: int, device: torch.device) -> Tensor:
    """Return each token's contribution to the hash, int32, [V]."""
    key = (torch.arange(vocab_size, device=device) * 0xCC9E2D51) & M32
    key = ((key << 15) | (key >> 17)) & M32
    return _wrapped((key * 0x1B873593) & M32)


def _wrapped(x: Tensor) -> Tensor:
    """Convert int64 in [0, 2^32) to int32 with the same bits."""
    return torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)
