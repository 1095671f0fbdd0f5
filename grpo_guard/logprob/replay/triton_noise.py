"""The ``grpo-guard`` noise in Triton, bit for bit that of `noise.py`.

For nodes that sample in a kernel: what they draw has to pass a replay in torch, and whatever drift
noise had of its own, a forger could use too. Hence integers, up to a last conversion that is exact.

`gumbel_of` is for kernels of your own; `triton_gumbel` computes whole tensors. Importing this
imports triton; nothing else in the library imports it. Arguments of kernels are pointers and
machine scalars, which Python's types do not describe.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import functools

import torch
from torch import Tensor

from grpo_guard.logprob import noise

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "triton_noise: expected the package triton, found none; noise.gumbel needs no triton"
    ) from error

DOMAIN = tl.constexpr(noise.DOMAIN["grpo-guard"])
FRACTION = tl.constexpr(noise.FRACTION)
DROPPED = tl.constexpr(noise.FRACTION - noise.NOISE_FRACTION)
ROUND = tl.constexpr(1 << (noise.FRACTION - noise.NOISE_FRACTION - 1))
UNIT = tl.constexpr(2.0**-noise.NOISE_FRACTION)
LN2 = tl.constexpr(noise.LN2)
BLOCK = 1024


@triton.jit
def _times(x, FACTOR: tl.constexpr, PLUS: tl.constexpr):
    """Modulo 2^32. By 64 bits, as the interpreter refuses to overflow; compiled, 32 are taken."""
    return (x.to(tl.uint64) * FACTOR + PLUS).to(tl.uint32)


@triton.jit
def _mixed(h, key):
    """One round of murmur3: the state after a key, of which the low 32 bits count."""
    key = _times(key.to(tl.uint32), 0xCC9E2D51, 0)
    h = h ^ _times((key << 15) | (key >> 17), 0x1B873593, 0)
    return _times((h << 13) | (h >> 19), 5, 0xE6546B64)


@triton.jit
def hashed(seed, position, token):
    """`noise.hashed` of int64 tensors of one shape, the seed with the bits of the unsigned one."""
    h = _mixed(tl.full(seed.shape, DOMAIN, tl.uint32), seed)
    h = _mixed(_mixed(_mixed(h, seed >> 32), position), token) ^ 16
    h = _times(h ^ (h >> 16), 0x85EBCA6B, 0)
    h = _times(h ^ (h >> 13), 0xC2B2AE35, 0)
    return (h ^ (h >> 16)).to(tl.int64)


@triton.jit
def _between(table, x, BITS: tl.constexpr):
    """Entry x / 2^BITS of a table, interpolated."""
    at = table + (x >> BITS)
    first = tl.load(at)
    return first + (((tl.load(at + 1) - first) * (x & ((1 << BITS) - 1))) >> BITS)


@triton.jit
def _ln(x, logs):
    """2^30 ln x for integers 1 <= x < 2^36."""
    exponent = tl.zeros_like(x)
    y = x
    for i in tl.static_range(6):
        bits = 32 >> i
        large = (y >> bits) > 0
        exponent += tl.where(large, bits, 0)
        y = tl.where(large, y >> bits, y)
    fraction = (x << (35 - exponent)) - (1 << 35)
    return exponent * LN2 + _between(logs, fraction, 25)


@triton.jit
def fixed_gumbel(h, logs, ratios):
    """`noise.fixed_gumbel`: int64 in [0, 2^32) to noise in units of 2^-18."""
    x = 2 * h + 1
    small = x < (1 << 32)
    inside = tl.where(small, x, 1)
    low = -_ln(inside, logs) - _between(ratios, inside, 23) + 33 * LN2
    exponential = -_ln(tl.where(small, 1 << 32, (1 << 33) - x), logs) + 33 * LN2
    high = -_ln(exponential, logs) + FRACTION * LN2
    return (tl.where(small, low, high) + ROUND) >> DROPPED


@triton.jit
def gumbel_of(seed, position, token, logs, ratios):
    """Noise of int64 tensors of one shape, fp32; pointers to the two tables of `tables`."""
    return fixed_gumbel(hashed(seed, position, token), logs, ratios).to(tl.float32) * UNIT


@triton.jit
def gumbel_kernel(seeds, positions, tokens, logs, ratios, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    seed, position = tl.load(seeds + at, live, 0), tl.load(positions + at, live, 0)
    token = tl.load(tokens + at, live, 0)
    tl.store(out + at, gumbel_of(seed, position, token, logs, ratios), live)


# With TRITON_INTERPRET=1 the decorator makes something else than a JITFunction.
INTERPRETED = not isinstance(gumbel_kernel, triton.JITFunction)


def triton_gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """`noise.gumbel` of the ``grpo-guard`` family by a kernel, int64 [N] each -> fp32 [N].

    Args:
        seeds: With the bits of the unsigned seeds (`noise.signed`).
        positions: Index of the token in its completion, >= 0.
        tokens: Token ids.

    Raises:
        ValueError: shapes or dtypes are not as described, or the tensors not on one GPU; under
            Triton's interpreter (TRITON_INTERPRET=1) they may be on the CPU.
    """
    for name, value in (("seeds", seeds), ("positions", positions), ("tokens", tokens)):
        if value.dtype != torch.int64 or value.shape != seeds.shape[:1]:
            got = f"{value.dtype} {tuple(value.shape)}"
            raise ValueError(f"{name}: expected int64, one-dimensional, of one length, got {got}")
    devices = {tensor.device for tensor in (seeds, positions, tokens)}
    if len(devices) > 1 or not (INTERPRETED or seeds.is_cuda):
        raise ValueError(f"seeds, positions, tokens: expected one CUDA device, got {devices}")
    out = torch.empty(seeds.shape, dtype=torch.float32, device=seeds.device)
    if len(out):  # a grid of no programs is an error
        inputs = (tensor.contiguous() for tensor in (seeds, positions, tokens))
        with torch.cuda.device_of(out):  # triton launches on the current device
            gumbel_kernel[(triton.cdiv(len(out), BLOCK),)](
                *inputs, *tables(seeds.device), out, len(out), BLOCK=BLOCK
            )
    return out


@functools.cache
def tables(device: torch.device) -> tuple[Tensor, ...]:
    """Logarithms and ratios on a device, int64, as `noise.fixed_gumbel` describes them."""
    return tuple(torch.from_numpy(table).to(device) for table in noise._tables())
