"""Samples that differ from the declaration: temperatures, a trainer's options, another model."""

import copy
import logging
from dataclasses import replace

import pytest
import torch

from grpo_guard import LogProbBoundVerifier, SamplingSpec
from grpo_guard.logprob.sampler_mismatch import MismatchError, require_same, sampler_differences
from tests.logprob.bundled_policy import SPEC, honest, policy

OPEN = replace(SPEC, top_k=0)
ALL = policy()[0].config.vocab_size


def warnings_of(caplog, batch, spec, **options):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="grpo_guard"):
        verifier = LogProbBoundVerifier(*policy(), sampling=spec, **options)
        caplog.clear()
        for start in range(0, len(batch), 64):
            verifier.verify(batch[start : start + 64])
    return [r.getMessage() for r in caplog.records if "look sampled" in r.getMessage()]


@pytest.mark.slow
def test_honest_sampler_gives_no_warning(caplog):
    assert warnings_of(caplog, honest(256), SPEC) == []
    assert warnings_of(caplog, honest(256, seed=3, top_k=ALL), OPEN) == []


@pytest.mark.slow
@pytest.mark.parametrize(("top_k", "spec"), [(50, SPEC), (ALL, OPEN)])
def test_higher_temperature_warns_once(caplog, top_k, spec):
    batch = honest(128, seed=5, temperature=1.6, top_k=top_k)
    (message,) = warnings_of(caplog, batch, spec)
    assert "temperature 1 is declared" in message
    assert 1.35 <= float(message.partition("at about ")[2].split()[0].rstrip(".")) <= 1.9


@pytest.mark.slow
def test_one_odd_node_of_three_gives_no_warning(caplog):
    batch = [replace(c, node="ann") for c in honest(64)]
    batch += [replace(c, node="ben") for c in honest(64, seed=2)]
    batch += [replace(c, node="eve") for c in honest(64, seed=5, temperature=2.0)]
    assert warnings_of(caplog, batch, SPEC) == []


def test_missing_truncation_warns_at_construction(caplog):
    with caplog.at_level(logging.WARNING, logger="grpo_guard"):
        LogProbBoundVerifier(*policy(), sampling=OPEN)
        assert "truncates nothing" in caplog.text
        caplog.clear()
        LogProbBoundVerifier(*policy(), sampling=SPEC)
        assert caplog.text == ""


def test_trainer_options_are_compared():
    spec = SamplingSpec("transformers", 1.0, 50, 1.0)
    assert sampler_differences(spec, {"temperature": 1.0, "top_k": 50, "min_p": None}) == []
    assert sampler_differences(spec, {"top_k": 50}) == []
    (found,) = sampler_differences(spec, {"temperature": 0.7, "top_k": 50})
    assert found == "temperature: declared 1.0, the trainer samples with 0.7"
    short = replace(spec, max_new_tokens=64)
    assert sampler_differences(short, {"top_k": 50, "max_new_tokens": 64}) == []
    (found,) = sampler_differences(short, {"top_k": 50, "max_new_tokens": 256})
    assert found == "max_new_tokens: declared 64, the trainer samples up to 256"
    off = SamplingSpec("vllm", 1.0, 0, 1.0)
    assert sampler_differences(off, {"top_k": -1, "top_p": 1.0}) == []
    assert len(sampler_differences(off, {"top_k": 20, "top_p": 0.9})) == 2


def test_models_of_different_shapes_are_compared_by_shared_names():
    """An extra parameter at the front must not shift which tensors are compared."""
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC, strict=True)

    class Adapted(torch.nn.Module):
        def __init__(self, change):
            super().__init__()
            self.extra = torch.nn.Parameter(torch.zeros(3))
            self.module = copy.deepcopy(model)
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.add_(change)

    require_same(verifier, None, Adapted(0.0))
    require_same(verifier, None, copy.deepcopy(model).bfloat16())
    with pytest.raises(MismatchError, match="other weights"):
        require_same(verifier, None, Adapted(1e-3))


def test_stale_copy_is_a_warning_or_an_error(caplog):
    model, tokenizer = policy()
    stale = copy.deepcopy(model)
    options = {"temperature": 1.0, "top_k": 50}
    with caplog.at_level(logging.WARNING, logger="grpo_guard"):
        require_same(LogProbBoundVerifier(model, tokenizer, sampling=SPEC), options, model)
        require_same(LogProbBoundVerifier(stale, tokenizer, sampling=SPEC), options, model)
    assert caplog.text == ""
    with torch.no_grad():
        for parameter in stale.parameters():
            parameter.add_(1e-3)
    verifier = LogProbBoundVerifier(stale, tokenizer, sampling=SPEC)
    with caplog.at_level(logging.WARNING, logger="grpo_guard"):
        require_same(~verifier, options, model)
    assert "other weights" in caplog.text
    strict = LogProbBoundVerifier(stale, tokenizer, sampling=SPEC, strict=True)
    with pytest.raises(MismatchError, match="other weights"):
        require_same(strict, options, model)
