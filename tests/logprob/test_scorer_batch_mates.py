"""Length-dependent rotary embeddings: scores must not depend on the rest of the batch."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from grpo_guard import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.memory import MemoryPlan, plan_jobs, unscaled_length
from grpo_guard.logprob.scorers.reuse import ForwardReuse
from grpo_guard.logprob.scorers.transformers import TransformersScorer

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0)
ORIGINAL = 64
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def model_of(name):
    torch.manual_seed(0)
    if name == "longrope":
        config = LlamaConfig(**SIZES, max_position_embeddings=256, rope_parameters=LONGROPE)
    elif name == "dynamic":
        config = LlamaConfig(**SIZES, max_position_embeddings=ORIGINAL, rope_parameters=DYNAMIC)
    else:
        return Gemma3ForCausalLM(
            Gemma3TextConfig(
                **SIZES,
                head_dim=16,
                max_position_embeddings=256,
                layer_types=["sliding_attention", "full_attention"],
                rope_parameters={"sliding_attention": PLAIN, "full_attention": LONGROPE},
            )
        ).eval()
    return LlamaForCausalLM(config).eval()


def sequences_of(totals, *, grouped):
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(3, 300, 20).tolist()) for _ in totals]
    return [
        Encoded(
            prompts[0] if grouped else prompt,
            tuple(rng.integers(3, 300, total - 20).tolist()),
            False,
        )
        for prompt, total in zip(prompts, totals, strict=True)
    ]


def assert_same(stats, expected):
    for one, other in zip(stats, expected, strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("name", ["longrope", "dynamic", "nested"])
def test_scores_do_not_depend_on_the_batch_or_earlier_calls(name, grouped):
    """One long hostile completion must not change the scores of honest ones, now or later."""
    model = model_of(name)
    honest = sequences_of((40, 60, ORIGINAL, ORIGINAL + 1, 70, 75), grouped=grouped)
    hostile = sequences_of((200,), grouped=grouped)
    # Use a copy each time, because dynamic frequencies persist in the model between calls.
    alone = [TransformersScorer(copy.deepcopy(model)).score([s], SPEC)[0] for s in honest]
    scorer = TransformersScorer(model)
    assert_same(scorer.score([*honest, *hostile], SPEC)[:-1], alone)
    scorer.score(hostile, SPEC)
    for sequence, expected in zip(honest, alone, strict=True):
        assert_same(scorer.score([sequence], SPEC), [expected])
        scorer.score(hostile, SPEC)


def test_only_sequences_beyond_the_original_length_run_alone():
    model = model_of("longrope")
    sequences = sequences_of((40, 60, ORIGINAL, ORIGINAL + 1, 200), grouped=True)
    plan = MemoryPlan.of(model, 2**30)
    jobs = plan_jobs(sequences, plan, share=True, together=ORIGINAL)
    assert sorted(sorted(job.indices) for job in jobs) == [[0, 1, 2], [3], [4]]
    assert not any(job.shared for job in jobs)


def test_unscaled_length_is_read_from_every_form_of_config():
    assert unscaled_length(model_of("longrope").config) == ORIGINAL
    assert unscaled_length(model_of("dynamic").config) == ORIGINAL
    assert unscaled_length(model_of("nested").config) == ORIGINAL
    assert unscaled_length(LlamaConfig(**SIZES)) is None

    old = SimpleNamespace(
        rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=32
    )
    assert unscaled_length(old) == 32


def test_batch_dependent_trainer_states_are_not_reused():
    model = model_of("longrope")
    sequences = sequences_of((40, 200), grouped=False)
    width = max(len(s.completion_ids) for s in sequences)
    rows = [[*s.prompt_ids, *s.completion_ids] for s in sequences]
    ids = torch.tensor([row + [0] * (20 + width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (20 + width - len(row)) for row in rows])
    expected = TransformersScorer(model).score(sequences[:1], SPEC)
    scorer = ForwardReuse(model)
    with torch.no_grad(), scorer.capture(ids, mask, width):
        model(input_ids=ids, attention_mask=mask)
    assert_same(scorer.score(sequences, SPEC)[:1], expected)
