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
    said = ("weights", "samples with", "float16", "positions")
    assert not any(part in w for w in warnings(caplog) for part in said)
    assert torch.isfinite(next(made.model.parameters())).all()


@pytest.fixture
def half(monkeypatch):
    made = tiny_trl.model
    monkeypatch.setattr(tiny_trl, "model", lambda tok: made(tok).half())


@pytest.mark.parametrize("mixin", [False, True])
def test_half_precision_warns_once_with_the_remedy(tmp_path, caplog, half, mixin):
    with caplog.at_level(logging.WARNING):
        made = trained(tmp_path, on(tiny_trl.model(tiny_trl.tokenizer())), mixin=mixin)
        if not mixin:  # the decorator meets its trainer with the first batch
            made.train()
    (said,) = [w for w in warnings(caplog) if "float16" in w]
    assert "Load it with dtype=torch.float32 or torch.bfloat16" in said


def test_half_precision_with_another_optimizer_gives_no_warning(tmp_path, caplog, half):
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, on(tiny_trl.model(tiny_trl.tokenizer())), mixin=True, optim="sgd")
    assert not any("float16" in w for w in warnings(caplog))


@pytest.mark.parametrize("mixin", [False, True])
@pytest.mark.parametrize(("longest", "warned"), [(252, 0), (253, 1)])
def test_completions_beyond_the_models_positions_warn_once(
    tmp_path, caplog, mixin, longest, warned
):
    """The prompts have 4 tokens, the model 256 positions."""
    verifier = on(tiny_trl.model(tiny_trl.tokenizer()))
    made = trained(tmp_path, verifier, mixin=mixin, steps=2, max_completion_length=longest)
    with caplog.at_level(logging.WARNING):
        made.train()
    found = [w for w in warnings(caplog) if "positions" in w]
    assert (
        found
        == [
            "logprob_bound: a prompt of 4 tokens and max_completion_length=253 make 257, but the "
            "model has 256 positions (max_position_embeddings). Longer completions are rejected as "
            "overlong: set max_completion_length=252 or lower"
        ]
        * warned
    )
