"""TRL's sampling and training settings against the verifier's, checked before any damage."""

import copy
import logging

import pytest
import torch

from grpo_guard import Guard, LogProbBoundVerifier, SamplingSpec, guard
from grpo_guard.logprob.sampler_mismatch import MismatchError
from tests.trl import tiny_trl
from tests.trl.test_trl_trainer import Guarded

OPEN = SamplingSpec("transformers", 1.0, 0, 1.0)


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def trained(folder, verifier, *, mixin=False, steps=1, **settings):
    functions = [length] if mixin else guard(verifier)([length])
    more = {"kind": Guarded, "extra": {"guard": Guard(verifier)}} if mixin else {}
    return tiny_trl.trainer(folder, functions, max_steps=steps, **more, **settings)


def on(model, sampling=OPEN, **options):
    """A random model draws special tokens like any others."""
    return LogProbBoundVerifier(
        model, tiny_trl.tokenizer(), sampling=sampling, profile="float32", special=range(4),
        **options,
    )  # fmt: skip


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("mixin", [pytest.param(False, marks=pytest.mark.slow), True])
def test_temperature_mismatch_warns_with_both_values(tmp_path, caplog, mixin):
    verifier = on(tiny_trl.model(tiny_trl.tokenizer()))
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, verifier, mixin=mixin, temperature=0.7).train()
    found = [w for w in warnings(caplog) if "the trainer samples with" in w]
    assert found == [
        "logprob_bound: temperature: declared 1.0, the trainer samples with 0.7; correct "
        "SamplingSpec or the trainer's options, or honest work is rejected"
    ]


@pytest.mark.parametrize("mixin", [False, True])
def test_strict_verifier_stops_the_run(tmp_path, mixin):
    verifier = on(tiny_trl.model(tiny_trl.tokenizer()), strict=True)
    with pytest.raises(MismatchError, match="top_k: declared 0, the trainer samples with 5"):
        trained(tmp_path, verifier, mixin=mixin, top_k=5).train()


def test_stale_copy_is_detected_after_the_first_update(tmp_path, caplog):
    """Equal at the start, so an earlier comparison could not tell."""
    made = trained(tmp_path, on(tiny_trl.model(tiny_trl.tokenizer())), steps=3)
    verifier = made.reward_funcs[0].guard.verifier
    verifier.scorer.model = copy.deepcopy(made.model)
    with caplog.at_level(logging.WARNING):
        made.train()
    assert any("other weights than the one that is trained" in w for w in warnings(caplog))


def test_trained_model_itself_gives_no_warning(tmp_path, caplog):
    made = trained(tmp_path, on(tiny_trl.model(tiny_trl.tokenizer())), steps=3)
    made.reward_funcs[0].guard.verifier.scorer.model = made.model
    with caplog.at_level(logging.WARNING):
        made.train()
    assert not any("weights" in w or "samples with" in w for w in warnings(caplog))
    assert torch.isfinite(next(made.model.parameters())).all()
