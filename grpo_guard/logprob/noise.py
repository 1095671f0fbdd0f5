"""Gumbel noise that is a pure function of (seed, position, token id).

Sampling is then an argmax of score + noise over the sampler's support: the Gumbel-max trick. Given
the seed, anyone can compute which token an honest sampler drew, up to numerical drift in the
scores.

There are three families:

* ``grpo-guard``: integer-only, so the bits are identical on any hardware.
* ``vllm``: the noise that vLLM's Model Runner V2 adds for a request with a ``seed`` (according to
  vllm 0.32, ``v1/worker/gpu/sample/gumbel.py``): the same hash, then fp32 logarithms, whose last
  bits differ between libraries. vLLM's V1 runner draws from a torch.Generator in an order that
  depends on batch and hardware, which cannot be replayed.
* ``sglang``: the noise that SGLang adds under ``--enable-deterministic-inference`` for a request
  with a ``sampling_seed`` (according to sglang 0.5.23, ``layers/sampler.py``): the same hash, but
  of the column, with large hashes in place of small ones, and fp64 logarithms. With top-k, top-p or
  min-p, the columns are ranks of sorted probabilities, which drift can change; otherwise they are
  token ids.

The hash carries 32 bits from the seed to the tokens, so two seeds share all their noise with
probability 2^-32. Attackers cannot exploit that, because the coin fixes the seed.
"""

import functools
import math
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec

Family: TypeAlias = Literal["grpo-guard", "vllm", "sglang"]

M32 = 0xFFFFFFFF
# The grpo-guard hash starts from a different state, so the same seed gives different noise.
DOMAIN = {"grpo-guard": 0x47475244, "vllm": 0, "sglang": 0}
# Fixed point: tables and sums have 30 fractional bits, and noise has 18, which fp32 holds exactly.
FRACTION, NOISE_FRACTION = 30, 18
LN2 = 744261118  # round(ln 2 * 2^30)


def gumbel(
    seed: int | Tensor, position: Tensor, token: Tensor, family: Family = "grpo-guard"
) -> Tensor:
    """Return standard Gumbel noise in fp32, in the broadcast shape of the arguments.

    Args:
        seed: The seed, 0 <= seed < 2^64, or a tensor of seeds as int64 with the same bits
            (`signed`).
        position: The token's `noise_position`, int64, >= 0.
        token: Token ids, int64.
        family: The noise family.

    Raises:
        ValueError: the seed is out of range or the family is unknown.
    """
    h = hashed(seed, position, token, family)
    if family == "vllm":
        u = (h >> 16).float() * 2.0**-16 + ((h & 0xFFFF).float() + 0.5) * 2.0**-32
        exponential: Tensor = -torch.log1p(-u)
        noise: Tensor = -exponential.log()
        return noise
    if family == "sglang":
        # -log u for u = (M32 - h) / M32, clamped to the engine's bounds
        exponential = -torch.log1p(-(h.double() / M32))
        least = torch.finfo(torch.float64).max
        noise = -exponential.clamp(2.0**-32, least).log()
        return noise.float()
    return _fixed_gumbel(h).float() * 2.0**-NOISE_FRACTION


def require_replayable(sampling: SamplingSpec, family: Family) -> None:
    """Refuse a sampler whose noise cannot be replayed, so that nodes find out in time; raises
    TypeError or ValueError."""
    if not isinstance(sampling, SamplingSpec):
        raise TypeError(f"sampling: expected a SamplingSpec, got {sampling!r}")
    if family not in get_args(Family):
        raise ValueError(
            "family: expected 'grpo-guard', 'vllm' (Model Runner V2) or 'sglang', got "
            f"{family!r}; what vLLM's V1 runner draws depends on batch and hardware and cannot be "
            "replayed"
        )
    if family in ("vllm", "sglang") and sampling.engine != family:
        raise ValueError(
            f"sampling.engine: expected {family!r} for its own noise, got {sampling.engine!r}"
        )
    if sampling.engine == "sglang" and (family != "sglang" or sampling.truncates):
        raise ValueError(
            "sampling.engine: 'sglang' is replayed with family='sglang' and without top_k, top_p "
            "and min_p (with them its noise goes by sorted rank, which drift changes), got family "
            f"{family!r} and {sampling!r}"
        )


def noise_position(family: Family, prompt_length: Tensor, t: Tensor) -> Tensor:
    """Return the position used for the noise of a completion's token t, [B], [B] -> [B].

    For ``grpo-guard`` the position is counted within the completion, so that neither padding nor
    another template can shift it; for the engines it is the absolute index of the token before t.
    """
    return t if family == "grpo-guard" else prompt_length + t - 1


def signed(seed: int) -> int:
    """Return the int64 with the same bits as an unsigned 64-bit seed, for use in tensors; raises
    ValueError for any other number."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed: expected 0 <= seed < 2**64, got {seed!r}")
    return seed - 2**64 if seed >= 2**63 else seed


def hashed(seed: Any, position: Any, token: Any, family: Family) -> Any:
    """Hash the two halves of the seed, the position and the token with murmur3 (Appleby) to an
    int64 in [0, 2^32), complemented for ``sglang`` so that small values give large noise."""
    if family not in get_args(Family):
        raise ValueError(f"family: expected {' or '.join(get_args(Family))}, got {family!r}")
    if isinstance(seed, int) and not 0 <= seed < 2**64:
        raise ValueError(f"seed: expected 0 <= seed < 2**64, got {seed!r}")
    h: Any = DOMAIN[family]
    for key in (seed & M32, (seed >> 32) & M32, position & M32, token & M32):
        h = mixed(h, key)
    h = h ^ 16  # the length in bytes
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & M32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & M32
    h = h ^ (h >> 16)
    return h ^ M32 if family == "sglang" else h


def mixed(h: Any, key: Any) -> Any:
    """Run one round of murmur3: return the state after mixing in a 32-bit key."""
    return (_rotated(h ^ key_of(key), 13) * 5 + 0xE6546B64) & M32


def key_of(key: Any) -> Any:
    """Return what a 32-bit key contributes to the state."""
    return (_rotated((key * 0xCC9E2D51) & M32, 15) * 0x1B873593) & M32


def _rotated(x: Any, bits: int) -> Any:
    return ((x << bits) | (x >> (32 - bits))) & M32


def _fixed_gumbel(h: Tensor) -> Tensor:
    """Return -ln(-ln(1 - v)) for v = (h + 1/2) / 2^32, in units of 2^-18, using integers only.

    For v < 1/2, where all large noise values lie, the result is computed as -ln v - r(v). The
    function r(v) = ln(-ln(1 - v) / v) is smooth, so there is no cancellation.
    """
    logs, ratios = (table.to(h.device) for table in _tables())
    x = 2 * h + 1  # v = x / 2^33
    small = x < (1 << 32)
    inside = torch.where(small, x, 1)
    i, rest = inside >> 23, inside & ((1 << 23) - 1)
    ratio = ratios[i] + (((ratios[i + 1] - ratios[i]) * rest) >> 23)
    low = 33 * LN2 - _ln(inside, logs) - ratio
    beyond = torch.where(small, 1 << 32, (1 << 33) - x)
    exponential = 33 * LN2 - _ln(beyond, logs)
    high = FRACTION * LN2 - _ln(exponential, logs)
    noise = torch.where(small, low, high)
    return (noise + (1 << (FRACTION - NOISE_FRACTION - 1))) >> (FRACTION - NOISE_FRACTION)


def _ln(x: Tensor, logs: Tensor) -> Tensor:
    """Return 2^30 ln x for integers 1 <= x < 2^36."""
    exponent, y = torch.zeros_like(x), x
    for bits in (32, 16, 8, 4, 2, 1):
        large = y >= (1 << bits)
        exponent = exponent + torch.where(large, bits, 0)
        y = torch.where(large, y >> bits, y)
    fraction = (x << (35 - exponent)) - (1 << 35)
    i, rest = fraction >> 25, fraction & ((1 << 25) - 1)
    return exponent * LN2 + logs[i] + (((logs[i + 1] - logs[i]) * rest) >> 25)


@functools.cache
def _tables() -> tuple[Tensor, Tensor]:
    """Return tables of round(2^30 ln(1 + i / 1024)) and round(2^30 r(i / 1024)), with r as in
    `_fixed_gumbel`. Both are longer than needed, so that entry ``i + 1`` always exists."""
    logs = [round(math.log1p(i / 1024) * 2**FRACTION) for i in range(1026)]
    ratios = [0] + [
        round(math.log(-math.log1p(-i / 1024) / (i / 1024)) * 2**FRACTION) for i in range(1, 514)
    ]
    cpu = torch.device("cpu")  # an engine may have changed the default device
    return torch.tensor(logs, device=cpu), torch.tensor(ratios, device=cpu)


# Bits of the hash to flip per family: `noise.hashed` complements the hash for some families.
FLIPS = {"grpo-guard": 0, "vllm": 0, "sglang": -1}
# Allowance for rounding in the fixed-point logarithms and fp32.
SLACK = 1.001


# What follows computes the hash for the whole vocabulary in one go, in 32-bit arithmetic.
def _int32(x: int) -> int:
    return x - 2**32 if x >= 2**31 else x


MIX, FIRST, SECOND = _int32(0xE6546B64), _int32(0x85EBCA6B), _int32(0xC2B2AE35)


def contenders(z: Tensor, best: Tensor, prefix: Tensor, keys: Tensor, flip: int) -> Tensor:
    """Mark the tokens whose noise lifts them above ``best``, plus a few others; boolean, [N, W].

    Noise above best - z means a hash below about exp(z - best). No step operates in place, so that
    a compiler can fuse the whole function.

    Args:
        z, best: Scores, fp32, [N, W]; score + noise to beat, [N].
        prefix, keys: The rows' `hash_prefix`, [N]; the tokens' `token_keys`, [W].
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
    return _wrapped(key_of(torch.arange(vocab_size, device=device)))


def _wrapped(x: Tensor) -> Tensor:
    """Convert int64 in [0, 2^32) to int32 with the same bits."""
    return torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)
