"""The shared seed on a GPU: the same noise, draws and margins as on a CPU."""

import pytest
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.noise import gumbel
from grpo_guard.logprob.replay.draw import draw
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.scorers.transformers import TransformersScorer

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from tests.logprob import test_noise_vectors as vectors

SPEC = SamplingSpec("transformers", 1.0, 50, 0.95, max_new_tokens=32)


def test_gpu_noise_matches_the_table():
    arguments = [x.cuda() for x in (vectors.SIGNED, vectors.POSITIONS, vectors.TOKENS)]
    expected = gumbel(vectors.SIGNED, vectors.POSITIONS, vectors.TOKENS)
    assert torch.equal(gumbel(*arguments).cpu(), expected)


@pytest.mark.parametrize("top_k", [0, 50])
def test_draws_match_the_cpu(top_k):
    scores = torch.randn(64, 151_936, generator=torch.manual_seed(0)) * 3
    seeds, positions = torch.arange(64) * 7919, torch.arange(64)
    spec = SamplingSpec("transformers", 1.0, top_k, 1.0)
    ours = draw(scores.cuda(), seeds.cuda(), positions.cuda(), spec).cpu()
    assert torch.equal(ours, draw(scores, seeds, positions, spec))


def test_model_margins_match_the_cpu():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=5000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config).eval()
    sequences = [
        Encoded((1, 2, 3), tuple(torch.randint(0, 5000, (24,)).tolist()), False, seed)
        for seed in (5, 2**63 + 5)
    ]
    expected = TransformersScorer(model).score(sequences, SPEC, replay=Replay())
    got = TransformersScorer(model.cuda()).score(sequences, SPEC, replay=Replay())
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(a.replay_margin),
            torch.from_numpy(b.replay_margin),
            atol=2e-2,
            rtol=1e-3,
        )
