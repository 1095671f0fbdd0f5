"""One forward of a group's prompt, running out of memory, and numbers that must not change."""

import inspect
import logging
import time

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_guard import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers import transformers as scorer_module
from grpo_guard.logprob.scorers.base import OutOfMemoryError
from grpo_guard.logprob.scorers.forward import Crowding
from grpo_guard.logprob.scorers.memory import MemoryPlan, plan_jobs
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.helpers.reference_stats import reference_stats

SPEC = SamplingSpec("transformers", 0.8, 20, 0.95)
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16},
    "phi3": {"pad_token_id": 0},
    "qwen3_moe": {**MOE, "decoder_sparse_step": 1},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "qwen3_next": {
        **MOE,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "falcon_h1": {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
    },
    "lfm2": {},
}
STATE_SPACE = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2}
}


def model_of(name, extra):
    sizes = {"vocab_size": 512} if name == "gpt2" else SIZES
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**sizes, **extra})).eval()


def group(rng, prompt=40, lengths=(12, 9, 5, 1)):
    """Make completions with the same prompt, longer than the sliding windows above."""
    prompt_ids = tuple(rng.integers(3, 500, prompt).tolist())
    return [Encoded(prompt_ids, tuple(rng.integers(3, 500, n).tolist()), False) for n in lengths]


def own_warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("grpo_guard")]


def assert_full_logits_agree(model, sequences, stats, spec=SPEC):
    for sequence, one in zip(sequences, stats, strict=True):
        ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, len(sequence.prompt_ids) - 1 : -1]
        targets = np.array(sequence.completion_ids)
        expected = reference_stats(logits.double().numpy(), targets, spec)
        np.testing.assert_allclose(one.logprob, expected.logprob, atol=2e-4)
        np.testing.assert_allclose(one.entropy, expected.entropy, atol=2e-4)
        np.testing.assert_allclose(one.mass_above, expected.mass_above, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shared_prompt_matches_full_logits(name, caplog):
    model = model_of(name, ARCHITECTURES[name])
    rng = np.random.default_rng(0)
    sequences = group(rng) + group(rng, 33, (7, 7))
    scorer = TransformersScorer(model)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        stats = scorer.score(sequences, SPEC)
    assert not own_warnings(caplog)  # no fallback
    assert_full_logits_agree(model, sequences, stats)


@pytest.mark.parametrize("name", STATE_SPACE)
def test_state_space_model_shares_its_prompt_if_its_forward_takes_a_cache(name, caplog):
    model = model_of(name, STATE_SPACE[name])
    sequences = group(np.random.default_rng(0))
    scorer = TransformersScorer(model)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        stats = scorer.score(sequences, SPEC)
        scorer.score(sequences, SPEC)
    assert_full_logits_agree(model, sequences, stats)
    if "cache" in inspect.signature(model.base_model.forward).parameters:
        assert own_warnings(caplog) == []
    else:  # before transformers 5.24
        (warning,) = own_warnings(caplog)  # logged once
        assert "each completion's prompt is run separately, because sharing it failed" in warning


class BodyWithoutConfig(torch.nn.Module):
    """A body that is not a transformers model."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.embed_tokens = inner.embed_tokens

    def forward(self, **inputs):
        return self.inner(**inputs)


def test_body_without_a_config_uses_plain_rows(caplog):
    model = model_of("llama", {})
    sequences = group(np.random.default_rng(0))
    expected = TransformersScorer(model).score(sequences, SPEC)
    model.model = BodyWithoutConfig(model.model)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        stats = TransformersScorer(model).score(sequences, SPEC)
    assert "prompt is run separately" in caplog.text
    for one, other in zip(stats, expected, strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-5)


def test_cache_with_different_numbers_is_not_used(monkeypatch, caplog):
    """Negative control of the self-check: sharing that forgets the prompt."""
    model = model_of("llama", {})
    from grpo_guard.logprob.scorers import forward

    def forgetful(body, sequences, device):
        return forward.row_states(
            body, [Encoded((1,), s.completion_ids, False) for s in sequences], device
        )

    monkeypatch.setattr(forward, "shared_states", forgetful)
    sequences = group(np.random.default_rng(0))
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        stats = TransformersScorer(model).score(sequences, SPEC)
    assert "differ from plain rows by" in caplog.text
    assert_full_logits_agree(model, sequences, stats)


def test_much_longer_group_is_checked_again(monkeypatch, caplog):
    """Right for short groups and wrong beyond, as an unknown sliding window would be."""
    model = model_of("llama", {})
    from grpo_guard.logprob.scorers import forward

    right = forward.shared_states

    def windowed(body, sequences, device):
        states = right(body, sequences, device)
        return states if len(sequences[0].prompt_ids) < 50 else states + 1.0

    monkeypatch.setattr(forward, "shared_states", windowed)
    scorer = TransformersScorer(model)
    rng = np.random.default_rng(0)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        scorer.score(group(rng), SPEC)
        assert not own_warnings(caplog)
        longer = group(rng, prompt=120)
        stats = scorer.score(longer, SPEC)
    assert "differ from plain rows by" in caplog.text
    assert_full_logits_agree(model, longer, stats)


def test_out_of_memory_halves_the_work_and_changes_no_number(monkeypatch):
    model = model_of("llama", {})
    rng = np.random.default_rng(0)
    sequences = group(rng) + group(rng, 20, (30, 3))
    expected = TransformersScorer(model).score(sequences, SPEC)
    inner, sizes = scorer_module.head_stats, []

    def scarce(hidden, *args, rows_at_once, **options):
        sizes.append((len(hidden), rows_at_once))
        if len(hidden) > 31:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return inner(hidden, *args, rows_at_once=rows_at_once, **options)

    monkeypatch.setattr(scorer_module, "head_stats", scarce)
    stats = TransformersScorer(model).score(sequences, SPEC)
    assert min(rows for _, rows in sizes) < max(rows for _, rows in sizes)
    for one, other in zip(stats, expected, strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-4)


def test_insufficient_memory_is_reported_after_finitely_many_tries(monkeypatch):
    tries = []

    def full(*args, **options):
        tries.append(1)
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(scorer_module, "head_stats", full)
    scorer = TransformersScorer(model_of("llama", {}))
    with pytest.raises(OutOfMemoryError, match="no room to score"):
        scorer.score(group(np.random.default_rng(0)), SPEC)
    assert len(tries) < 20


def test_other_errors_are_not_taken_for_out_of_memory(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(scorer_module, "head_stats", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        TransformersScorer(model_of("llama", {})).score(group(np.random.default_rng(0)), SPEC)


def test_sequence_beyond_an_explicit_budget_is_refused_untried():
    scorer = TransformersScorer(model_of("llama", {}), memory_budget=2**20)
    with pytest.raises(OutOfMemoryError, match="sequence of 451 tokens exceeds"):
        scorer.score(group(np.random.default_rng(0), 441, (10,)), SPEC)
    with pytest.raises(ValueError, match="memory_budget: expected bytes >= 1048576"):
        TransformersScorer(model_of("llama", {}), memory_budget=10)


def test_smaller_budget_makes_smaller_batches():
    model = model_of("llama", {})
    rng = np.random.default_rng(0)
    sequences = [s for _ in range(4) for s in group(rng, 40, (60, 50, 40, 30))]
    wide, narrow = (MemoryPlan.of(model, budget) for budget in (2**28, 2**21))
    jobs, more = (plan_jobs(sequences, plan, share=True) for plan in (wide, narrow))
    assert len(more) > len(jobs) == 4
    for plan, made in ((wide, jobs), (narrow, more)):
        assert sorted(i for job in made for i in job.indices) == list(range(len(sequences)))
        for job in made:
            longest = max(len(sequences[i].completion_ids) for i in job.indices)
            assert len(job.indices) == 1 or len(job.indices) * longest <= plan.forward_tokens
    a = TransformersScorer(model, memory_budget=2**28).score(sequences, SPEC)
    b = TransformersScorer(model, memory_budget=2**22).score(sequences, SPEC)
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-4)


@pytest.mark.slow
def test_thread_budget_lasts_for_the_call():
    seen, sequences, model = [], group(np.random.default_rng(0)), model_of("llama", {})

    class Watched(TransformersScorer):
        def _run(self, *args):
            seen.append(torch.get_num_threads())
            return super()._run(*args)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Watched(model, threads=1).score(sequences, SPEC)
        assert seen == [1] * len(seen)
        assert torch.get_num_threads() == 2
        Watched(model).score(sequences, SPEC)
        assert seen[-1] == 2
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ValueError, match="threads: expected an integer >= 1 or None, got 0"):
        TransformersScorer(model, threads=0)


def test_starved_threads_warn_once(monkeypatch, caplog):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(Crowding, "SECONDS", 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    model, crowding = model_of("llama", {}), Crowding()
    for _ in range(2):
        with crowding.watched(model):
            time.sleep(0.05)  # as good as waiting for a core
    assert len(caplog.records) == 1
    assert "OMP_WAIT_POLICY=PASSIVE" in caplog.text
    caplog.clear()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    with Crowding().watched(model):
        time.sleep(0.05)
    assert not caplog.records
