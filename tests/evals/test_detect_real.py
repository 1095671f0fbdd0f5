"""A small sample of the long measurement, on real weights; `make measure` runs all of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.config import DetectConfig
from grpo_guard.evals.detect.matrix import rates
from grpo_guard.evals.detect.run import run
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.training.policies.fetch_smollm2 import is_complete

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
DATA = gsm8k_file() or ROOT.parent / "shared/data/gsm8k/train.jsonl"
SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=64)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_model,
    pytest.mark.skipif(not is_complete(MODEL), reason="run make models for SmolLM2"),
    pytest.mark.skipif(not DATA.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's train.jsonl"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_honest_passes_and_text_does_not(dtype: str) -> None:
    config = DetectConfig(
        str(MODEL), SPEC, data=DATA, attacks=("text",), n=4, min_tokens=32, batch_size=4
    )
    config = replace(config, dtype=dtype, control_count=0)
    torch.set_num_threads(1)
    honest, text = rates(run(config, cache=None, say=lambda *_: None))
    assert (honest.rejected, honest.abstained, honest.n) == (0, 0, 4)
    assert (text.rejected, text.located, text.n) == (4, 4, 4)
