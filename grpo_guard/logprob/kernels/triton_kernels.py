"""Triton kernels for the sums of `partial.py` and the leaders of `rows.py`; launching is elsewhere.

Traps that every kernel here closes:

* A target's score is computed first and written into its own column: computed twice it may differ
  in the last bit, and a token must never outrank itself.
* Columns beyond the vocabulary are -inf. Zero would be a likely token among negative logits.
* Scores are compared with bounds, never subtracted from each other and compared with zero: a
  compiler may fuse the scaling into the subtraction, after which two equal scores differ.
* 1/T multiplies the fp32 accumulator. Folded into bf16 states it would round them.
* Grids have one dimension (a second ends at 65,535) and offsets that grow with rows or with the
  vocabulary are 64-bit (32,768 rows x 152k columns pass 2^31).

Arguments are pointers and machine scalars, which Python's types do not describe.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from grpo_guard.logprob.stats import LEADER_STRIDE

STRIDE = tl.constexpr(LEADER_STRIDE)


@triton.jit
def _scores(dot, bias, scale, cap, CAPPED: tl.constexpr):
    """Bias, scale / T and soft-cap of raw products; ``cap`` is the soft-cap / T.

    Addition before multiplication, so that nothing can be fused and the target's own score has the
    same bits wherever it is computed.
    """
    z = (dot + bias) * scale
    if CAPPED:
        x = z / cap
        e = tl.exp(-2.0 * tl.abs(x))  # <= 1: never overflows; off by 1e-7 absolute at most near 0
        t = (1.0 - e) / (1.0 + e)
        z = tl.where(x < 0, -t, t) * cap
    return z


@triton.jit
def _tile_sums(z, z_target, margin, FLAT: tl.constexpr):
    """Sums over the columns of one tile, [BN, BV] -> nine of [BN]; `epilogue.tile_sums` in Triton.

    NaN reaches ``below`` and with it every statistic that divides by the total.
    """
    NEG: tl.constexpr = float("-inf")
    m = tl.max(z, 1)
    d = z - tl.where(m == NEG, 0.0, m)[:, None]  # a tile of nothing but -inf is empty, not NaN
    e = tl.exp(d)
    above = z > z_target[:, None]
    near = (z >= (z_target - margin)[:, None]) & (z <= (z_target + margin)[:, None]) & (z > NEG)
    de = tl.where(e > 0, d * e, 0.0)  # -inf * 0 is NaN; the limit is 0
    d2e = tl.where(e > 0, d * de, 0.0)
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
        tl.sum(d2e, 1),
        half,
        three_quarters,
        tl.sum(above.to(tl.int32), 1),
        tl.sum(near.to(tl.int32), 1),
    )


@triton.jit
def _moved(to, m, above, below, weighted, squared, half, three_quarters):
    """Sums relative to ``m`` made relative to the maximum ``to``; `partial._relative_to`."""
    empty = m == float("-inf")
    d = tl.where(empty, 0.0, m - to)
    f = tl.where(empty, 0.0, tl.exp(d))
    total = above + below
    return (
        above * f,
        below * f,
        (weighted + d * total) * f,
        (squared + 2.0 * d * weighted + d * d * total) * f,
        half * tl.where(empty, 0.0, tl.exp(0.5 * d)),
        three_quarters * tl.where(empty, 0.0, tl.exp(0.75 * d)),
    )


@triton.jit
def _store(
    sums, counts, part, r, live, rows, m, above, below, weighted, squared, half, tq, rank, ties
):  # fmt: skip
    """Sums of one part: ``sums`` is [parts, 7, rows], ``counts`` [parts, 2, rows]."""
    to = sums + part.to(tl.int64) * 7 * rows + r
    tl.store(to, m, mask=live)
    tl.store(to + rows, above, mask=live)
    tl.store(to + 2 * rows, below, mask=live)
    tl.store(to + 3 * rows, weighted, mask=live)
    tl.store(to + 4 * rows, squared, mask=live)
    tl.store(to + 5 * rows, half, mask=live)
    tl.store(to + 6 * rows, tq, mask=live)
    to = counts + part.to(tl.int64) * 2 * rows + r
    tl.store(to, rank, mask=live)
    tl.store(to + rows, ties, mask=live)


@triton.jit
def token_scores_kernel(
    hidden, weight, bias, tokens, out, tokens_per_row, width,
    stride_h, stride_v, stride_w, scale, cap,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Scores of chosen tokens, [rows, tokens_per_row]; one program each, fp32 throughout."""
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
    products, bias, targets, target_scores, margins, sums, counts, leaders,
    rows, columns, stride_p, first, first_part, leaders_per_row, scale, cap,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, FLAT: tl.constexpr, RANKS: tl.constexpr,
    BLOCK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Sums over a stored chunk of raw products [rows, columns], read once.

    One program per row and BV columns; ``first`` is the chunk's first token, a multiple of BV.
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
    m, above, below, weighted, squared, half, tq, rank, ties = _tile_sums(
        z, z_target, tl.load(margins + r), FLAT
    )
    _store(
        sums, counts, first_part + part, r, r < rows, rows,
        m, above, below, weighted, squared, half, tq, rank, ties,
    )  # fmt: skip
    if RANKS:
        best = tl.max(tl.reshape(z, (BV // (BLOCK * STRIDE), BLOCK, STRIDE)), 1)
        best = tl.reshape(best, (BV // BLOCK,))
        block = (first + part * BV) // BLOCK + tl.arange(0, BV // BLOCK)
        to = leaders + r.to(tl.int64) * leaders_per_row + block
        tl.store(to, best, mask=block < leaders_per_row)


@triton.jit
def _token(place, BLOCK: tl.constexpr):
    """The token at a place: the blocks one after the other, their tokens STRIDE apart."""
    SPAN: tl.constexpr = BLOCK * STRIDE
    q = place % SPAN
    return place - q + (q % BLOCK) * STRIDE + q // BLOCK


@triton.jit
def _folded(
    m, above, below, weighted, squared, half, tq, rank, ties,
    dot, first, bias, target, z_target, margin,
    leaders, r, live, vocab, leaders_per_row, scale, cap,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, FLAT: tl.constexpr, RANKS: tl.constexpr,
    BLOCK: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The running sums with the products of places [first, first + BV) added; stores leaders."""
    column = _token(first + tl.arange(0, BV), BLOCK)
    b = tl.zeros((BV,), tl.float32)
    if HAS_BIAS:
        b = tl.load(bias + column, mask=column < vocab, other=0.0).to(tl.float32)
    z = _scores(dot, b[None, :], scale, cap, CAPPED)
    z = tl.where(column[None, :] == target[:, None], z_target[:, None], z)
    z = tl.where((column < vocab)[None, :], z, float("-inf"))
    if RANKS:
        best = tl.max(tl.reshape(z, (BN, BV // BLOCK, BLOCK)), 2)
        block = first // BLOCK + tl.arange(0, BV // BLOCK)
        to = leaders + r.to(tl.int64)[:, None] * leaders_per_row + block[None, :]
        tl.store(to, best, mask=live[:, None] & (block < leaders_per_row)[None, :])
    m2, above2, below2, weighted2, squared2, half2, tq2, rank2, ties2 = _tile_sums(
        z, z_target, margin, FLAT
    )
    both = tl.maximum(m, m2)
    above, below, weighted, squared, half, tq = _moved(
        both, m, above, below, weighted, squared, half, tq
    )
    above2, below2, weighted2, squared2, half2, tq2 = _moved(
        both, m2, above2, below2, weighted2, squared2, half2, tq2
    )
    return (
        both,
        above + above2,
        below + below2,
        weighted + weighted2,
        squared + squared2,
        half + half2,
        tq + tq2,
        rank + rank2,
        ties + ties2,
    )


@triton.jit
def fused_sums_kernel(
    hidden, weight, bias, targets, target_scores, margins, sums, counts, leaders,
    rows, vocab, width, stride_h, stride_v, leaders_per_row, scale, cap,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, FLAT: tl.constexpr, RANKS: tl.constexpr,
    BLOCK: tl.constexpr, UPCAST: tl.constexpr, EVEN: tl.constexpr, SPLIT: tl.constexpr,
    BN: tl.constexpr, BV: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Product and sums in one: the scores never leave the chip.

    One program per BN rows and SPLIT columns. Row blocks are the fastest index, so that programs
    which run side by side share their columns of the weight in the cache. EVEN says that BH
    divides the width: loads without a mask are wider.
    """
    NEG: tl.constexpr = float("-inf")
    row_blocks = tl.cdiv(rows, BN)
    pid = tl.program_id(0)
    part = pid // row_blocks
    r = (pid % row_blocks) * BN + tl.arange(0, BN)
    live = r < rows
    safe = tl.minimum(r, rows - 1)  # rows beyond the last repeat it and are not stored
    k = tl.arange(0, BH)
    h = hidden + safe.to(tl.int64)[:, None] * stride_h + k[None, :]
    z_target = tl.load(target_scores + safe)
    margin = tl.load(margins + safe)
    target = tl.load(targets + safe).to(tl.int32)
    m = tl.full((BN,), NEG, tl.float32)
    above = tl.zeros((BN,), tl.float32)
    below = tl.zeros((BN,), tl.float32)
    weighted = tl.zeros((BN,), tl.float32)
    squared = tl.zeros((BN,), tl.float32)
    half = tl.zeros((BN,), tl.float32)
    tq = tl.zeros((BN,), tl.float32)
    rank = tl.zeros((BN,), tl.int32)
    ties = tl.zeros((BN,), tl.int32)
    first = part * SPLIT
    # Places, not tokens: a tile takes its columns in such an order that it holds whole blocks.
    places = tl.cdiv(vocab, BLOCK * STRIDE) * (BLOCK * STRIDE)
    for v in range(first, tl.minimum(first + SPLIT, places), BV):
        column = _token(v + tl.arange(0, BV), BLOCK)
        w = weight + tl.minimum(column, vocab - 1).to(tl.int64)[None, :] * stride_v + k[:, None]
        dot = tl.zeros((BN, BV), tl.float32)
        for start in range(0, width, BH):
            if EVEN:
                x = tl.load(h + start)
                y = tl.load(w + start)
            else:
                x = tl.load(h + start, mask=k[None, :] < width - start, other=0.0)
                y = tl.load(w + start, mask=k[:, None] < width - start, other=0.0)
            if UPCAST:  # unlike dtypes; and the interpreter multiplies the bit patterns of bf16
                x = x.to(tl.float32)
                y = y.to(tl.float32)
            dot = tl.dot(x, y, dot, input_precision="ieee")  # TF32 would cost three digits
        # The sums hold several numbers per score: a half of the tile at a time spares registers.
        halves = tl.permute(tl.reshape(dot, (BN, 2, BV // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        for i in tl.static_range(2):
            m, above, below, weighted, squared, half, tq, rank, ties = _folded(
                m, above, below, weighted, squared, half, tq, rank, ties,
                left if i == 0 else right, v + i * (BV // 2), bias, target, z_target, margin,
                leaders, safe, live, vocab, leaders_per_row, scale, cap,
                HAS_BIAS, CAPPED, FLAT, RANKS, BLOCK, BN, BV // 2,
            )  # fmt: skip
    _store(
        sums, counts, part, r, live, rows,
        m, above, below, weighted, squared, half, tq, rank, ties,
    )  # fmt: skip
