"""Models that would be scored as something else, and a model shared by two scorers."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_guard import SamplingSpec
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.scores import HeadError
from grpo_guard.logprob.scorers.load import load_policy
from grpo_guard.logprob.scorers.memory import ran_out_of_memory
from grpo_guard.logprob.scorers.transformers import TransformersScorer

SPEC = SamplingSpec("transformers", 1.0, 0, 1.0)
SEQUENCE = Encoded((1, 2, 3), tuple(range(4, 20)), False)
CONFIG = LlamaConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.3,
)


class Peft:
    """A PEFT model as a scorer sees it."""

    def __init__(self, base, *, is_prompt_learning):
        self.base = base
        self.active_peft_config = SimpleNamespace(is_prompt_learning=is_prompt_learning)

    def get_base_model(self):
        return self.base


def test_prompt_learning_is_refused():
    base = LlamaForCausalLM(CONFIG).eval()
    with pytest.raises(ValueError, match="prompt learning"):
        TransformersScorer(Peft(base, is_prompt_learning=True))
    wrapper = Peft(base, is_prompt_learning=False)
    scorer = TransformersScorer(wrapper)
    assert len(scorer.score([SEQUENCE], SPEC)[0]) == len(SEQUENCE.completion_ids)
    wrapper.active_peft_config.is_prompt_learning = True  # another adapter made active
    with pytest.raises(ValueError, match="prompt learning"):
        scorer.score([SEQUENCE], SPEC)


class Transforming(LlamaForCausalLM):
    """A model with logits that its head does not produce."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 3
        return output


def with_closed_tokens(kind):
    torch.manual_seed(0)
    model = kind(CONFIG).eval()
    model.lm_head.bias = nn.Parameter(torch.zeros(300))
    with torch.no_grad():
        model.lm_head.bias[290:] = -torch.inf
    return model


def test_infinite_logits_do_not_hide_a_transform_of_the_head():
    with pytest.raises(HeadError, match="not those of its output head"):
        TransformersScorer(with_closed_tokens(Transforming)).score([SEQUENCE], SPEC)


def test_nan_weights_give_nan_and_postpone_the_head_check():
    """Verifiers abstain on NaN; once there are numbers again, a transform is still detected."""
    torch.manual_seed(0)
    model = Transforming(CONFIG).eval()
    scorer, good = TransformersScorer(model), model.model.norm.weight.clone()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    assert np.isnan(scorer.score([SEQUENCE], SPEC)[0].logprob).all()
    with torch.no_grad():
        model.model.norm.weight.copy_(good)
    with pytest.raises(HeadError):
        scorer.score([SEQUENCE], SPEC)


def test_nan_logit_fails_the_head_check():
    model = with_closed_tokens(LlamaForCausalLM)
    with torch.no_grad():
        model.lm_head.bias[5] = torch.nan
    with pytest.raises(HeadError, match="largest difference nan"):
        TransformersScorer(model).score([SEQUENCE], SPEC)


def test_equal_infinities_are_equal():
    model = with_closed_tokens(LlamaForCausalLM)
    (stats,) = TransformersScorer(model).score([SEQUENCE], SPEC)
    ids = torch.tensor([SEQUENCE.prompt_ids + SEQUENCE.completion_ids])
    with torch.no_grad():
        logprobs = model(ids).logits[0, 2:-1].log_softmax(-1)
    expected = logprobs.gather(-1, ids[0, 3:, None])[:, 0].double()
    torch.testing.assert_close(torch.tensor(stats.logprob), expected, atol=1e-4, rtol=0)


def test_two_scorers_of_one_model_do_not_disturb_its_eval_mode():
    model = LlamaForCausalLM(CONFIG).train()
    second_entered, first_done = threading.Event(), threading.Event()
    seen = []

    def hook(module, arguments):
        if threading.current_thread().name == "first":
            second_entered.wait(0.2)  # enough time for the second thread, if it were let in
        else:
            second_entered.set()
            first_done.wait(5)
        seen.append(model.training)

    model.model.register_forward_pre_hook(hook)
    first_entered = threading.Event()
    model.model.register_forward_pre_hook(lambda *_: first_entered.set(), prepend=True)

    def first():
        TransformersScorer(model).score([SEQUENCE], SPEC)
        first_done.set()

    one = threading.Thread(target=first, name="first")
    other = threading.Thread(target=lambda: TransformersScorer(model).score([SEQUENCE], SPEC))
    one.start()
    assert first_entered.wait(5)
    other.start()
    one.join(30)
    other.join(30)
    assert len(seen) == 6
    assert not any(seen)
    assert model.training


def test_window_is_that_of_the_text_model():
    scorer = TransformersScorer(LlamaForCausalLM(CONFIG))
    text = SimpleNamespace(max_position_embeddings=77)
    scorer.model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    assert scorer.window == 77


def test_full_gpu_is_no_wrong_device(monkeypatch):
    def full(*size, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_policy(str(WORD_PROBLEMS), device="cuda:0")


def test_gpu_without_room_for_a_context_is_full():
    assert ran_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not ran_out_of_memory(RuntimeError("CUDA error: invalid device ordinal"))
