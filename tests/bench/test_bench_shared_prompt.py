"""Running a group's prompt once against running it once per completion: ``make bench``."""

import pytest
import torch

from grpo_guard.evals.studies.bench.prompts import group_of_one_prompt
from grpo_guard.logprob.kernels.product import faster_linear
from grpo_guard.logprob.scorers.forward import row_states, shared_states


@pytest.mark.parametrize("way", [shared_states, row_states])
def test_body_forward(benchmark, way):
    body, group = group_of_one_prompt("cpu")
    with torch.no_grad(), faster_linear(body):  # as the scorer does it
        benchmark.pedantic(way, args=(body, group, torch.device("cpu")), rounds=3, warmup_rounds=1)
