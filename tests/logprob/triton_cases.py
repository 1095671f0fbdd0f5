"""Cases for the Triton kernels in Triton's interpreter; `test_triton_interpreted.py` runs them.

The interpreter is selected by an environment variable that triton reads at its first import, and
torch.compile imports it in other tests. So these run as a script in a separate process:

    TRITON_INTERPRET=1 python tests/logprob/triton_cases.py RESULTS.json
"""

import json
import re
import sys
import time
import traceback
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels import head_stats as module
from grpo_guard.logprob.kernels.scores import Head
from tests.logprob.triton_checks import check, integers, logits_of, moved, reals, triton_row_stats

CASES: dict[str, Callable[[], object]] = {}


def case(name):
    def register(function):
        CASES[name] = function
        return function

    return register


for n, v, h in ((1, 1, 1), (5, 17, 33), (16, 64, 16), (17, 128, 32), (19, 259, 37)):

    @case(f"rows {n} vocabulary {v} width {h}")
    def _(n=n, v=v, h=h):
        return check(*integers(n, n, v, h))


for t in (0.0625, 0.25, 1.0, 4.0):

    @case(f"exact ties at temperature {t}")
    def _(t=t):  # powers of two: ties stay ties
        return check(*integers(1), temperature=t, top_k=5)


for t in (0.05, 0.3, 0.7, 1.3, 5.0):

    @case(f"real logits at temperature {t}")
    def _(t=t):
        return check(*reals(2, rows=20), temperature=t, exact=False)


for k in (0, 1, 5, 50, 256, 300, 5000):

    @case(f"top-k {k}")
    def _(k=k):
        return check(*integers(k, vocab=300), temperature=0.5, top_k=k)


@case("bf16 and fp16 operands")
def _():
    for dtype in (torch.bfloat16, torch.float16):
        result = check(*reals(4, dtype=dtype), temperature=0.7, exact=False)
    return result


@case("fp32 states and a bf16 weight")
def _():
    hidden, head, targets = reals(5)
    return check(hidden, Head(head.weight.bfloat16()), targets, exact=False)


@case("many chunks of a workspace that is too small")
def _():
    return check(*integers(7, vocab=1000), top_k=5, workspace_bytes=1)


@case("a duplicate of the target does not outrank it")
def _():
    hidden, head, targets = reals(8)
    head.weight[5] = head.weight[200]
    targets[:] = 5
    stats = triton_row_stats(hidden, head, targets, temperature=1.0)
    expected = (logits_of(hidden, head) > logits_of(hidden, head)[:, 5:6] + 1e-4).sum(-1)
    assert ((stats.rank - expected) * (stats.rank - expected - 1) == 0).all()
    ones = Head(torch.ones(300, 8))
    return check(torch.ones(3, 8), ones, torch.tensor([0, 17, 299]))


for column in (0, 258):

    @case(f"target in column {column} of 259")
    def _(column=column):
        hidden, head, targets = integers(9, vocab=259)
        return check(hidden, head, torch.full_like(targets, column), top_k=5)


@case("very negative logits")  # columns beyond the vocabulary would be likeliest at 0
def _():
    hidden, head, targets = integers(10, vocab=259)
    return check(hidden.abs() + 1, Head(-head.weight.abs() - 1), targets)


def masked(vocab, allowed):
    bias = torch.full((vocab,), -torch.inf)
    bias[allowed] = 0.5
    return bias


@case("every third column at -inf")
def _():
    hidden, head, targets = integers(11)
    bias = torch.zeros(300)
    bias[::3] = -torch.inf
    head = Head(head.weight, bias, head.scale)
    check(hidden, head, targets // 3 * 3 + 1)
    return check(hidden, head, targets // 3 * 3 + 1, top_k=5)


@case("whole tiles and splits at -inf")
def _():
    hidden, head, targets = integers(12)
    head = Head(head.weight, masked(300, [7, 200]), head.scale)
    check(hidden, head, torch.full_like(targets, 200), without=("log_flat_mass",))
    return check(hidden, head, torch.full_like(targets, 200), top_k=5)


@case("a target at -inf has log-probability -inf and no NaN anywhere")
def _():
    hidden, head, targets = integers(13)
    head = Head(head.weight, masked(300, [7, 200]), head.scale)
    for k in (0, 5):
        stats = triton_row_stats(
            hidden, head, torch.full_like(targets, 9), temperature=1.0, top_k=k
        )
        assert (stats.logprob == -torch.inf).all()
        assert (stats.rank == 2).all()
        assert (stats.ties == 0).all()
        assert not any(column.isnan().any() for column in stats)


@case("NaN in the states of a row is NaN in its log-probability, and nowhere else")
def _():
    hidden, head, targets = integers(14)
    hidden[4, 3] = torch.nan
    stats = triton_row_stats(hidden, head, targets, temperature=1.0, top_k=5)
    assert stats.logprob.isnan().tolist() == [row == 4 for row in range(9)]


@case("one NaN in the weight, far from the target, is NaN in every log-probability")
def _():
    hidden, head, targets = integers(15)
    head.weight[299, 0] = torch.nan
    stats = triton_row_stats(hidden, head, targets % 200, temperature=1.0)
    assert stats.logprob.isnan().all()


@case("bias, scale and soft-cap")
def _():
    generator = torch.Generator().manual_seed(16)
    bias = torch.randn(300, generator=generator)
    for scale, softcap in ((0.25, None), (1.0, 2.0), (3.0, 30.0), (1.0, 0.01)):
        hidden, head, targets = reals(16, bias=bias, scale=scale, softcap=softcap)
        if softcap != 0.01:  # so far beyond the cap, logits are equal only in fp32
            worst = check(hidden, head, targets, temperature=0.7, exact=False)
    stats = triton_row_stats(hidden * 1e6, head, targets, temperature=1.0)
    assert stats.logit.abs().max() <= 0.0100001  # saturated without overflow
    return worst


@case("a soft-cap near 0 keeps equal logits equal")
def _():
    hidden, head, targets = integers(17, softcap=30.0)
    expected = logits_of(hidden, head)
    own = expected.gather(1, targets[:, None])
    stats = triton_row_stats(hidden, head, targets, temperature=1.0)
    torch.testing.assert_close(stats.logit.double(), own[:, 0], atol=1e-5, rtol=0)
    assert (stats.rank == (expected > own + 1e-6).sum(-1)).all()
    assert (stats.ties == ((expected - own).abs() < 1e-6).sum(-1) - 1).all()


@case("a tail of 1e-12 keeps its digits")
def _():
    weight = torch.zeros(1000, 1)
    weight[3] = 34.5388  # exp(-34.5388) = 1e-15, times 999 tokens
    stats = triton_row_stats(torch.ones(1, 1), Head(weight), torch.tensor([5]), temperature=1.0)
    assert abs(stats.tail_mass.item() / 999e-15 - 1) < 1e-3


@case("leaders of two neighbours in a vocabulary of 8,200")
def _():
    return check(*integers(18, rows=1, vocab=8200, width=16), top_k=50, temperature=0.5)


@case("weights of other layouts, states that are a view")
def _():
    hidden, head, targets = integers(19, rows=18, vocab=600)
    view, every_second = hidden[::2], Head(head.weight[::2], None, head.scale)
    check(view, every_second, targets[:9] // 2)
    transposed = Head(every_second.weight.T.contiguous().T, None, head.scale)
    return check(view, transposed, targets[:9] // 2)


@case("arguments that are refused")
def _():
    hidden, head, targets = integers(20)
    for expected, arguments, options in (
        ("N >= 1, 20", (hidden[:, :7], head, targets), {}),
        ("N >= 1, 20", (hidden[:0], head, targets[:0]), {}),
        ("int64 of shape [9]", (hidden, head, targets[:3]), {}),
        ("got torch.float64", (hidden.double(), head, targets), {}),
        ("a number > 0", (hidden, head, targets), {"temperature": 0.0}),
        ("[0, 300), got", (hidden, head, targets + 300), {}),
        ("[0, 300), got", (hidden, head, targets - 300), {}),
    ):
        with pytest.raises(ValueError, match=re.escape(expected)):
            triton_row_stats(*arguments, **{"temperature": 1.0, **options})


@case("head_stats by the kernels and by tiles")
def _():
    hidden, head, targets = moved(*integers(21))
    spec = SamplingSpec("transformers", 0.5, 5, 0.9)
    options = {"rows_at_once": 4}
    by = {}
    for implementation in ("triton", "tiled"):
        with patch.object(module, "supported", return_value=implementation == "triton"):
            stats, gaps, _ = module.head_stats(hidden, head, targets, spec, **options)
        by[implementation] = (*stats, gaps)
    assert not module._triton_failed
    for one, other in zip(by["triton"], by["tiled"], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@case("any integer-valued case")
def _():
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(deadline=None, max_examples=8, database=None, derandomize=True)
    @given(
        seed=st.integers(0, 10**6),
        rows=st.integers(1, 20),
        vocab=st.integers(2, 400),
        width=st.integers(1, 40),
        temperature=st.sampled_from([0.0625, 0.25, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 7, 256]),
    )
    def run(seed, rows, vocab, width, **options):
        check(*integers(seed, rows, vocab, width), **options)

    run()


@case("any real-valued case")
def _():
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(deadline=None, max_examples=8, database=None, derandomize=True)
    @given(
        seed=st.integers(0, 10**6),
        vocab=st.integers(2, 400),
        temperature=st.sampled_from([0.05, 0.7, 1.3, 5.0]),
        top_k=st.sampled_from([0, 50]),
        dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    )
    def run(seed, vocab, dtype, **options):
        check(*reals(seed, vocab=vocab, dtype=dtype), exact=False, **options)

    run()


def result_of(name):
    """Run a case; return its largest errors, if it measures any, and its failure or None."""
    try:
        return CASES[name](), None
    except (Exception, pytest.fail.Exception):
        return None, traceback.format_exc()


def main(path):
    results = {}
    for name in CASES:
        start = time.perf_counter()
        worst, failure = result_of(name)
        results[name] = {
            "failure": failure,
            "errors": worst if isinstance(worst, dict) else None,
            "seconds": time.perf_counter() - start,
        }
    with open(path, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
