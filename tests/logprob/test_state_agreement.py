"""Hidden states from elsewhere are used only if all of them equal those of plain rows."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from grpo_guard import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers import forward
from grpo_guard.logprob.scorers.forward import disagreement
from grpo_guard.logprob.scorers.reuse import ForwardReuse
from grpo_guard.logprob.scorers.transformers import TransformersScorer

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0)
LENGTH = 120
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}


def llama(**extra):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **extra)).eval()


def batch(prompt_lengths, completion=12):
    """Left-padded prompts followed by completions, and the sequences in them."""
    width = max(prompt_lengths)
    ids = torch.randint(1, 300, (len(prompt_lengths), width + completion))
    mask = torch.ones_like(ids)
    for row, length in enumerate(prompt_lengths):
        ids[row, : width - length] = mask[row, : width - length] = 0
    sequences = [
        Encoded(tuple(row[width - n : width].tolist()), tuple(row[width:].tolist()), False)
        for row, n in zip(ids, prompt_lengths, strict=True)
    ]
    return ids, mask, sequences


def capture(scorer, model, ids, mask, completion=12):
    with torch.no_grad(), scorer.capture(ids, mask, completion):
        model(input_ids=ids, attention_mask=mask)


def largest_difference(stats, expected):
    return max(
        float(abs(one.logprob - other.logprob).max())
        for one, other in zip(stats, expected, strict=True)
    )


def passes_of(model):
    seen = []
    model.base_model.register_forward_hook(lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_wrong_state_among_many_ends_sharing(dtype, monkeypatch, caplog):
    """Below the mean's tolerance: 1 of 240 checked states, off by little (fp32) or entirely."""
    model = llama().to(dtype)
    right = forward.shared_states

    def nearly_right(body, sequences, device):
        states = right(body, sequences, device).clone()
        states[7] = states[7] * 1.015 if dtype == torch.float32 else states[7].roll(7, -1)
        return states

    monkeypatch.setattr(forward, "shared_states", nearly_right)
    torch.manual_seed(1)
    prompt = tuple(torch.randint(0, 300, (LENGTH,)).tolist())
    group = [
        Encoded(prompt, tuple(torch.randint(0, 300, (LENGTH,)).tolist()), False) for _ in range(4)
    ]
    stats = TransformersScorer(model).score(group, SPEC)
    assert "sharing it failed" in caplog.text
    expected = TransformersScorer(model, shared_prompts=False).score(group, SPEC)
    assert largest_difference(stats, expected) < 1e-4


def test_later_batch_with_relevant_padding_is_not_reused():
    """GPT-2 counts padding as positions if a trainer passes none."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, n_embd=64, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2
    )
    model = GPT2LMHeadModel(config).eval()
    scorer = ForwardReuse(model)
    for lengths in ([20] * 4, [20, 10, 5, 20]):
        ids, mask, sequences = batch(lengths)
        capture(scorer, model, ids, mask)
        stats = scorer.score(sequences, SPEC)
        assert largest_difference(stats, scorer.own.score(sequences, SPEC)) < 1e-4
        assert scorer.enabled == (lengths[1] == 20)


def test_one_wrong_state_in_a_captured_batch_ends_reuse():
    """In bf16, where one in a hundred vanishes in the mean."""
    model = llama().to(torch.bfloat16)
    scorer = ForwardReuse(model)
    ids, mask, sequences = batch([20, 15], LENGTH)

    def spoil(module, arguments, output):
        output.last_hidden_state[1, 30] = output.last_hidden_state[1, 30].roll(7)

    handle = model.model.register_forward_hook(spoil)
    capture(scorer, model, ids, mask, LENGTH)
    handle.remove()
    stats = scorer.score(sequences, SPEC)
    assert not scorer.enabled
    assert largest_difference(stats, scorer.own.score(sequences, SPEC)) < 1e-4


def test_mixed_precision_states_are_compared_as_such():
    model = llama()
    scorer = ForwardReuse(model)
    ids, mask, sequences = batch([20, 15], LENGTH)
    with torch.autocast("cpu", torch.bfloat16):
        capture(scorer, model, ids, mask, LENGTH)
    passes = passes_of(model)
    scorer.own.score(sequences[:1], SPEC)  # the first call checks the head
    passes.clear()
    scorer.score(sequences, SPEC)
    assert scorer.enabled
    assert len(passes) == 1  # the check's own pass


def test_every_batch_is_checked_once():
    model = llama()
    scorer = ForwardReuse(model)
    scorer.own.score([batch([5])[2][0]], SPEC)
    for _ in range(2):
        ids, mask, sequences = batch([20, 15])
        capture(scorer, model, ids, mask)
        passes = passes_of(model)
        scorer.score(sequences, SPEC)
        scorer.score(sequences, SPEC)
        assert len(passes) == 1


def test_weights_changed_behind_the_version_counter_are_noticed():
    model = llama()
    scorer = ForwardReuse(model)
    ids, mask, sequences = batch([20, 15])
    capture(scorer, model, ids, mask)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    stats = scorer.score(sequences, SPEC)
    assert largest_difference(stats, scorer.own.score(sequences, SPEC)) < 1e-4


def test_forgotten_states_are_not_used():
    model = llama()
    scorer = ForwardReuse(model)
    ids, mask, sequences = batch([20, 15])
    capture(scorer, model, ids, mask)
    scorer.forget()
    scorer.own.score(sequences[:1], SPEC)
    passes = passes_of(model)
    scorer.score(sequences, SPEC)
    assert scorer.enabled
    assert len(passes) == 1  # both of its own rows


def test_attention_with_dropout_is_not_captured():
    """It is a number in the attention config, not a module."""
    model = llama(attention_dropout=0.1).train()
    scorer = ForwardReuse(model)
    ids, mask, sequences = batch([20, 15])
    capture(scorer, model, ids, mask)
    stats = scorer.score(sequences, SPEC)
    assert scorer.enabled
    assert largest_difference(stats, scorer.own.score(sequences, SPEC)) < 1e-4


def test_mask_with_holes_is_not_taken_for_a_shorter_completion():
    model = llama()
    scorer = ForwardReuse(model)
    ids, mask, _ = batch([20, 20])
    mask[1, 24] = 0
    capture(scorer, model, ids, mask)
    kept = mask[1].bool()
    kept[:20] = False
    holed = Encoded(tuple(ids[1, :20].tolist()), tuple(ids[1][kept].tolist()), False)
    stats = scorer.score([holed], SPEC)
    assert largest_difference(stats, scorer.own.score([holed], SPEC)) < 1e-4


@pytest.mark.parametrize(
    ("low_precision", "mean", "largest"), [(False, 1e-4, 1e-2), (True, 3e-2, 0.3)]
)
def test_disagreement_shows_in_the_mean_or_one_token(low_precision, mean, largest):
    expected = torch.ones(1000, 8)

    def found(factors):
        return disagreement(expected * factors[:, None], expected, low_precision=low_precision)

    one = torch.ones(1000)
    assert found(one) is None
    one[3] += 0.9 * largest
    assert found(one) is None
    one[3] += 0.2 * largest
    assert "in one token" in found(one)
    assert "on average" in found(torch.full((1000,), 1 + 1.1 * mean))
    one[3] = torch.nan
    assert found(one)
