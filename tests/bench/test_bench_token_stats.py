"""Tiled statistics against the naive sort and the bare product, in one run: ``make bench``.

N = 256 rows, the head of Qwen2.5-0.5B (V = 151,936, H = 896), fp32. Compare ratios, not seconds.
"""

import math

import pytest
import torch

from grpo_guard.logprob.kernels.head import Head
from grpo_guard.logprob.kernels.scores import HeadScores
from grpo_guard.logprob.kernels.tiled import TILE, row_stats

ROWS, VOCAB, WIDTH = 256, 151_936, 896


@pytest.fixture(scope="module")
def case():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    weight = torch.randn(VOCAB, WIDTH, generator=generator) * (3 / math.sqrt(WIDTH))
    return hidden, Head(weight), torch.randint(0, VOCAB, (ROWS,), generator=generator)


def product_only(hidden, head, targets):
    for start in range(0, VOCAB, TILE):
        hidden @ head.weight[start : start + TILE].T


def naive(hidden, head, targets):
    log_p = torch.log_softmax(hidden @ head.weight.T, -1)
    ranked, order = torch.sort(log_p, dim=-1, descending=True)
    rank = (order == targets[:, None]).int().argmax(-1)
    return ranked.exp().cumsum(-1).gather(1, rank[:, None])


def tiled(hidden, head, targets):
    return row_stats(HeadScores(hidden, head, 1.0), targets)


@pytest.mark.parametrize("way", [product_only, tiled, naive])
def test_token_stats(benchmark, case, way):
    with torch.no_grad():
        benchmark.pedantic(way, args=case, rounds=3, warmup_rounds=1)
