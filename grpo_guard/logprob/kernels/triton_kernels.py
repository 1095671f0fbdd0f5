"""Triton kernels for the sums and leaders of `statistics.py`; `triton_launch.py` launches them.

Every kernel in this module avoids the following pitfalls:

* A target's score is computed once and written into its own column: if it were computed twice, the
  results could differ in the last bit, and a token must never outrank itself.
* Columns beyond the vocabulary are -inf. Zeros would look like likely tokens among negative logits.
* Scores are compared directly, never subtracted and compared with zero: a compiler could fuse the
  scaling into the subtraction, making two equal scores differ.
* 1/T is applied to the fp32 accumulator. Applying it to bf16 states would round them.
* Grids have one dimension (a second is limited to 65,535), and offsets that grow with rows or with
  the vocabulary are 64-bit (32,768 rows x 152k columns exceed 2^31).

Arguments are pointers and machine scalars, which Python type hints cannot describe.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from grpo_guard.logprob.kernels import statistics
from grpo_guard.logprob.stats import LEADER_STRIDE

STRIDE = tl.constexpr(LEADER_STRIDE)
SUMS = tl.constexpr(statistics.SUMS)
COUNTS = tl.constexpr(len(statistics.COUNTS))


@triton.jit
def _scores(dot, bias, scale, cap, CAPPED: tl.constexpr):
    """Apply the bias, scale / T and soft-cap to raw products; ``cap`` is the soft-cap / T.

    The addition comes before the multiplication, so that nothing can be fused and a target's score
    is bitwise identical wherever it is computed.
    """
    z = (dot + bias) * scale
    if CAPPED:
        x = z / cap
        e = tl.exp(-2.0 * tl.abs(x))  # <= 1, so it never overflows; error at most 1e-7 near 0
        t = (1.0 - e) / (1.0 + e)
        z = tl.where(x < 0, -t, t) * cap
    return z


@triton.jit
def _tile_sums(z, z_target, FLAT: tl.constexpr):
    """Compute the sums over one tile, [BN, BV] -> [BN] each, in the order of `Partial`.

    The Triton version of `statistics.tile_sums`.

    NaN propagates to ``below`` and hence to every statistic that divides by the total.
    """
    NEG: tl.constexpr = float("-inf")
    m = tl.max(z, 1)
    d = z - tl.where(m == NEG, 0.0, m)[:, None]  # an all -inf tile counts as empty, not as NaN
    e = tl.exp(d)
    above = z > z_target[:, None]
    equal = (z == z_target[:, None]) & (z > NEG)
    de = tl.where(e > 0, d * e, 0.0)  # -inf * 0 is NaN; the limit is 0
    half = tl.zeros_like(m)
    three_quarters = tl.zeros_like(m)
    if FLAT:
        half = tl.sum(tl.exp(0.5 * d), 1)
        three_quarters = tl.sum(tl.exp(0.75 * d), 1)
    return (
        m,
        tl.sum(tl.where(above, e, 0.0), 1),
        tl.sum(tl.where(above, 0.0, e), 1),
        tl.sum(de, 1),
        half,
        three_quarters,
        tl.sum(above.to(tl.int32), 1),
        tl.sum(equal.to(tl.int32), 1),
    )


@triton.jit
def _store(
    sums, counts, part, r, live, rows, m, above, below, weighted, half, tq, rank, ties
):  # fmt: skip
    """Store the sums for one part of the vocabulary.

    ``sums`` has shape [parts, SUMS, rows], ``counts`` [parts, COUNTS, rows].
    """
    to = sums + part.to(tl.int64) * SUMS * rows + r
    tl.store(to, m, mask=live)
    tl.store(to + rows, above, mask=live)
    tl.store(to + 2 * rows, below, mask=live)
    tl.store(to + 3 * rows, weighted, mask=live)
    tl.store(to + 4 * rows, half, mask=live)
    tl.store(to + 5 * rows, tq, mask=live)
    to = counts + part.to(tl.int64) * COUNTS * rows + r
    tl.store(to, rank, mask=live)
    tl.store(to + rows, ties, mask=live)


@triton.jit
def token_scores_kernel(
    hidden, weight, bias, tokens, out, tokens_per_row, width,
    stride_h, stride_v, stride_w, scale, cap,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Compute scores of selected tokens, [rows, tokens_per_row], in fp32; one program per score."""
    i = tl.program_id(0)
    token = tl.load(tokens + i)
    h = hidden + (i // tokens_per_row).to(tl.int64) * stride_h
    w = weight + token * stride_v
    acc = tl.zeros((BH,), tl.float32)
    for start in range(0, width, BH):
        k = start + tl.arange(0, BH)
        x = tl.load(h + k, mask=k < width, other=0.0).to(tl.float32)
        y = tl.load(w + k.to(tl.int64) * stride_w, mask=k < width, other=0.0).to(tl.float32)
        acc += x * y
    b = 0.0
    if HAS_BIAS:
        b = tl.load(bias + token).to(tl.float32)
    tl.store(out + i, _scores(tl.sum(acc, 0), b, scale, cap, CAPPED))


@triton.jit
def chunk_sums_kernel(
    products, bias, targets, target_scores, sums, counts, leaders,
    rows, columns, stride_p, first, first_part, leaders_per_row, scale, cap,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, FLAT: tl.constexpr, RANKS: tl.constexpr,
    BLOCK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Compute the sums over a stored chunk of raw products, [rows, columns], in a single read.

    There is one program per row per BV columns; ``first``, the chunk's first token, is a multiple
    of BV.
    """
    pid = tl.program_id(0)
    r = pid % rows + tl.arange(0, 1)
    part = pid // rows
    local = part * BV + tl.arange(0, BV)
    inside = local < columns
    z = tl.load(products + r.to(tl.int64) * stride_p + local, mask=inside, other=0.0)
    b = tl.zeros_like(z)
    if HAS_BIAS:
        b = tl.load(bias + first + local, mask=inside, other=0.0).to(tl.float32)
    z = _scores(z, b, scale, cap, CAPPED)
    z_target = tl.load(target_scores + r)
    z = tl.where(first + local == tl.load(targets + r).to(tl.int32), z_target, z)
    z = tl.where(inside, z, float("-inf"))[None, :]
    m, above, below, weighted, half, tq, rank, ties = _tile_sums(z, z_target, FLAT)
    _store(
        sums, counts, first_part + part, r, r < rows, rows,
        m, above, below, weighted, half, tq, rank, ties,
    )  # fmt: skip
    if RANKS:
        best = tl.max(tl.reshape(z, (BV // (BLOCK * STRIDE), BLOCK, STRIDE)), 1)
        best = tl.reshape(best, (BV // BLOCK,))
        block = (first + part * BV) // BLOCK + tl.arange(0, BV // BLOCK)
        to = leaders + r.to(tl.int64) * leaders_per_row + block
        tl.store(to, best, mask=block < leaders_per_row)
