"""The head's statistics against the bare matrix product and the naive implementations: ``make
bench``.

Uses the head of Qwen2.5-0.5B (V = 151,936, H = 896) on one thread. Compare ratios, not seconds.
"""

import sys

import pytest
import torch

from grpo_guard.evals.studies.bench.head import HeadCase, full_logits, naive_sort, product_only
from grpo_guard.logprob.kernels import tiled as tiles
from grpo_guard.logprob.kernels.scores import Head, HeadScores


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def case(request):
    return HeadCase(256, 151_936, 896, request.param).tensors("cpu")


def tiled(hidden, weight, targets):
    return tiles.row_stats(HeadScores(hidden, Head(weight), 0.7), targets, top_k=50)


WAYS = {
    "product only": lambda hidden, weight, targets: product_only(hidden, weight),
    "tiled, compiled": tiled,
    "tiled, eager": tiled,
    "full logits": full_logits,
    "naive sort": naive_sort,
}


@pytest.mark.parametrize("way", WAYS)
def test_head_statistics(benchmark, case, way, monkeypatch):
    monkeypatch.setattr(tiles, "WORTH_COMPILING", -1 if way == "tiled, compiled" else sys.maxsize)
    if case[1].dtype == torch.bfloat16 and way in ("full logits", "naive sort"):
        pytest.skip("native bfloat16 products are emulated on a CPU: not a fair comparison")
    with torch.no_grad():
        benchmark.pedantic(WAYS[way], args=case, rounds=3, warmup_rounds=1)
