"""The noise's hash of every token of the vocabulary at once, on 32 bits."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grpo_guard.logprob.noise import DOMAIN, M32, Family, mixed


def hash_vocabulary(seeds: Tensor, positions: Tensor, vocab_size: int, family: Family) -> Tensor:
    """`hashed` for all tokens, as int32 with the same bits, [B], [B] -> [B, V].

    In place on 32 bits, where products wrap: a fraction of what 64-bit integers cost.
    """
    prefix = _prefix(seeds, positions, family)
    h = prefix[:, None] ^ _token_keys(vocab_size, seeds.device)
    h = (h << 13) | ((h >> 19) & 0x1FFF)
    h.mul_(5).add_(_int32(0xE6546B64)).bitwise_xor_(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None)):
        h ^= (h >> shift) & ((1 << (32 - shift)) - 1)
        if factor is not None:
            h.mul_(_int32(factor))
    return h


def _prefix(seeds: Tensor, positions: Tensor, family: Family) -> Tensor:
    """State of the hash before the token goes in, int32, [B]."""
    h = torch.full_like(seeds, DOMAIN[family])
    for key in (seeds & M32, (seeds >> 32) & M32, positions & M32):
        h = mixed(h, key)
    return _wrapped(h)


@functools.lru_cache(maxsize=4)
def _token_keys(vocab_size: int, device: torch.device) -> Tensor:
    """What each token adds to the hash, int32, [V]."""
    key = (torch.arange(vocab_size, device=device) * 0xCC9E2D51) & M32
    key = ((key << 15) | (key >> 17)) & M32
    return _wrapped((key * 0x1B873593) & M32)


def _wrapped(x: Tensor) -> Tensor:
    """int64 in [0, 2^32) -> int32 with the same bits."""
    return torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)


def _int32(x: int) -> int:
    return x - 2**32 if x >= 2**31 else x
