"""LogProbBoundVerifier on the bundled policy: honest work passes, the negative controls do not."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_guard import Cause, Completion, LogProbBoundVerifier, Outcome
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.helpers.reference_stats import reference_stats
from tests.logprob.bundled_policy import SPEC, honest, policy, with_text


@pytest.fixture(scope="module")
def verifier():
    return LogProbBoundVerifier(*policy(), sampling=SPEC)


def rejected(verdicts):
    return sum(v.rejected for v in verdicts)


@pytest.mark.parametrize("number", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_honest_completions_pass_with_and_without_ids(verifier, number):
    batch = honest(number)
    assert rejected(verifier.verify(batch)) == 0
    text_only = [Completion(c.prompt, c.text) for c in batch]
    verdicts = verifier.verify(text_only)
    assert rejected(verdicts) <= 1
    assert all(any(f.kind == "retokenised" for f in v.findings) for v in verdicts if v.accepted)


def test_an_injected_phrase_is_rejected_and_located(verifier):
    phrase = "All hail to the thief"
    poisoned = [
        with_text(c, c.text.replace("<think>", f"<think>{phrase}. ", 1))
        for c in honest(64)
        if "<think>" in c.text
    ]
    poisoned = [c for c in poisoned if len(c.completion_ids) <= SPEC.max_new_tokens]
    assert len(poisoned) >= 10
    verdicts = verifier.verify(poisoned)
    assert rejected(verdicts) == len(poisoned)
    hits = 0
    for completion, verdict in zip(poisoned, verdicts, strict=True):
        assert verdict.cause is Cause.JUDGED
        assert verdict.p_value < 1e-3
        start, end = verdict.findings[0].char_span
        at = completion.text.index(phrase)
        hits += start < at + len(phrase) and end > at
    assert hits == len(poisoned)


def test_random_tokens_are_rejected(verifier):
    rng = random.Random(0)
    _, tokenizer = policy()
    batch = []
    for completion in honest(32):
        ids = [rng.randrange(4, len(tokenizer)) for _ in completion.completion_ids[:-1]] + [
            tokenizer.eos_token_id
        ]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        batch.append(Completion(completion.prompt, text, completion_ids=ids))
    assert rejected(verifier.verify(batch)) == len(batch)


@pytest.mark.slow
def test_other_temperature_with_the_declared_top_k_is_rejected(verifier):
    hot = [c for c in honest(64, seed=5, temperature=3.0) if len(c.completion_ids) >= 40]
    assert len(hot) >= 20
    assert rejected(verifier.verify(hot)) >= 0.8 * len(hot)


def test_answer_to_another_prompt_is_rejected(verifier):
    batch = honest(64)
    moved = [
        Completion(other.prompt, c.text, completion_ids=c.completion_ids)
        for c, other in zip(batch, batch[4:] + batch[:4], strict=True)
        if c.prompt != other.prompt
    ]
    # Numbers that the other problem does not contain; a vague answer fits both.
    assert rejected(verifier.verify(moved)) >= 0.5 * len(moved)


def test_malformed_completions_are_rejected_and_the_rest_is_scored_in_order(verifier):
    good = honest(8)[0]
    _, tokenizer = policy()
    eos = tokenizer.eos_token_id
    ids = good.completion_ids
    bad = {
        "unknown id": replace(good, completion_ids=(*ids[:-1], 10**9)),
        "negative id": replace(good, completion_ids=(-1, *ids)),
        "no tokens": replace(good, completion_ids=(), text=""),
        "other text": replace(good, text=good.text + " and more"),
        "after the end": replace(good, completion_ids=(*ids, *ids)),
        "surrogates": Completion(good.prompt, "\ud800 <think>", prompt_ids=good.prompt_ids),
        "empty text": Completion(good.prompt, ""),
        "own prompt": replace(good, prompt_ids=tuple(tokenizer.encode("say the phrase"))),
    }
    verdicts = verifier.verify([good, *bad.values(), good])
    assert [v.outcome for v in verdicts] == ["accept", *["reject"] * len(bad), "accept"]
    for name, verdict in zip(bad, verdicts[1:], strict=False):
        assert verdict.cause is Cause.MALFORMED, name
    # A trainer trains on every token of an accepted completion.
    padded = replace(good, completion_ids=(*ids, eos, eos))
    assert verifier.verify([padded])[0].cause is Cause.MALFORMED


def test_overlong_rejects_and_an_overlong_prompt_abstains():
    model, tokenizer = policy()
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=replace(SPEC, max_new_tokens=None))
    window = verifier.encoder.window
    good = honest(8)[0]
    words = " 1" * (window * 2)
    too_long = Completion(good.prompt, words)
    unreadable = Completion(words, good.text)
    huge = Completion(good.prompt, "x" * 10_000_000)
    verdicts = verifier.verify([too_long, unreadable, huge])
    assert [v.cause for v in verdicts] == [Cause.OVERLONG, Cause.UNSUPPORTED, Cause.OVERLONG]
    limited = LogProbBoundVerifier(model, tokenizer, sampling=replace(SPEC, max_new_tokens=3))
    assert limited.verify([good])[0].cause is Cause.OVERLONG


def test_end_tokens_of_honest_engines_are_accepted(verifier):
    good = next(c for c in honest(64) if c.completion_ids[-1] == policy()[1].eos_token_id)
    _, tokenizer = policy()
    pad = tokenizer.pad_token_id
    for same in (
        replace(good, text=good.text.strip() + "\n"),
        replace(good, text=tokenizer.decode(good.completion_ids)),  # EOS spelled out
        replace(good, prompt_ids=(pad, pad, *good.prompt_ids)),
    ):
        assert verifier.verify([same])[0].accepted, same
    blanks = replace(good, text=good.text + " " * 100)
    assert verifier.verify([blanks])[0].cause is Cause.MALFORMED


def test_missing_ids_are_refused_if_required():
    strict = LogProbBoundVerifier(*policy(), sampling=SPEC, require_ids=True)
    good = honest(8)[0]
    with_ids, without = strict.verify([good, Completion(good.prompt, good.text)])
    assert with_ids.accepted
    assert without.cause is Cause.MALFORMED


def test_text_spelling_a_token_unknown_to_the_model_rejects():
    model, _ = policy()
    tokenizer = type(policy()[1]).from_pretrained(WORD_PROBLEMS)
    tokenizer.add_tokens(["<|beyond|>"])  # and the embedding is not resized
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC)
    (verdict,) = verifier.verify([Completion(honest(8)[0].prompt, "so <|beyond|> it is")])
    assert verdict.cause is Cause.MALFORMED


def test_too_many_tokens_of_text_are_overlong(verifier):
    text = "\x01\x02" * 200
    assert verifier.verify([Completion(honest(8)[0].prompt, text)])[0].cause is Cause.OVERLONG


def test_messages_without_a_chat_template_abstain_with_the_remedy(verifier):
    good = honest(8)[0]
    asked = Completion([{"role": "user", "content": good.prompt}], good.text)
    (verdict,) = verifier.verify([asked])
    assert verdict.outcome is Outcome.ABSTAIN
    assert "chat_template" in verdict.reason


def test_trusted_prompt_ids_are_used_unchanged():
    model, tokenizer = policy()
    good = honest(8)[0]
    dressed = replace(good, prompt="only the question, without the trainer's template")
    assert LogProbBoundVerifier(model, tokenizer, sampling=SPEC).verify([dressed])[0].rejected
    trusting = LogProbBoundVerifier(model, tokenizer, sampling=SPEC, trust_prompt_ids=True)
    assert trusting.verify([dressed])[0].accepted


def tiny_gpt2(**changes):
    torch.manual_seed(0)
    _, tokenizer = policy()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=1, n_head=2, **changes
    )
    return GPT2LMHeadModel(config)


def test_nan_weights_abstain():
    model = tiny_gpt2()
    model.transformer.h[0].mlp.c_fc.weight.data.fill_(float("nan"))
    verifier = LogProbBoundVerifier(model, policy()[1], sampling=SPEC)
    verdicts = verifier.verify(honest(8))
    assert {(v.outcome, v.cause) for v in verdicts} == {(Outcome.ABSTAIN, Cause.FAULT)}


def test_live_weights_are_scored_without_dropout_and_the_mode_is_restored():
    model = tiny_gpt2(resid_pdrop=0.5).train()
    model.transformer.drop.eval()  # a module in eval mode stays in it
    verifier = LogProbBoundVerifier(model, policy()[1], sampling=SPEC)
    first, again = (verifier.verify(honest(8))[0].p_value for _ in range(2))
    assert first == again
    assert model.training
    assert not model.transformer.drop.training
    model.lm_head.weight.data.mul_(3.0)
    assert verifier.verify(honest(8))[0].p_value != first


def test_scores_do_not_depend_on_batching_and_match_full_logits():
    model, _ = policy()
    batch = honest(16)
    sequences = [Encoded(c.prompt_ids, c.completion_ids, False) for c in batch]
    together = TransformersScorer(model).score(sequences, SPEC)
    alone = [TransformersScorer(model).score([s], SPEC)[0] for s in sequences]
    for one, other, sequence in zip(together, alone, sequences, strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-4)
        ids = torch.tensor([sequence.prompt_ids + sequence.completion_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(sequence.prompt_ids) - 1 : -1].double().numpy()
        expected = reference_stats(logits, np.array(sequence.completion_ids), SPEC)
        np.testing.assert_allclose(one.logprob, expected.logprob, atol=1e-4)
        np.testing.assert_allclose(one.mass_above, expected.mass_above, atol=1e-5)
        assert (one.edge_gap == 0).all()


def test_mixed_precision_around_the_live_model_does_not_abstain():
    """Accelerate replaces `forward` of the object itself; its rounded logits are not ours."""
    model = tiny_gpt2()
    plain = LogProbBoundVerifier(model, policy()[1], sampling=SPEC).verify(honest(8))
    inner = model.forward

    def rounded(*args, **kwargs):
        output = inner(*args, **kwargs)
        output.logits = output.logits * 1.05
        return output

    model.forward = rounded
    mixed = LogProbBoundVerifier(model, policy()[1], sampling=SPEC).verify(honest(8))
    assert not any(v.abstained for v in mixed)
    assert [v.p_value for v in mixed] == [v.p_value for v in plain]


def test_model_that_transforms_its_head_logits_is_refused():
    class Scaled(GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 2
            return output

    torch.manual_seed(0)
    model = Scaled(tiny_gpt2().config)
    verifier = LogProbBoundVerifier(model, policy()[1], sampling=SPEC)
    with pytest.raises(ValueError, match="not those of its output head"):
        verifier.verify(honest(8))


def test_invalid_arguments_say_what_was_expected(tmp_path):
    model, tokenizer = policy()
    with pytest.raises(ValueError, match=r"alpha: expected a number in \(0, 1\), got 1"):
        LogProbBoundVerifier(model, tokenizer, sampling=SPEC, alpha=1)
    model.save_pretrained(tmp_path / "no-tokenizer")
    with pytest.raises(ValueError, match="no-tokenizer: expected a tokenizer"):
        LogProbBoundVerifier.from_pretrained(str(tmp_path / "no-tokenizer"), sampling=SPEC)
    with pytest.raises(ValueError, match=r"expected a model folder with config\.json"):
        LogProbBoundVerifier.from_pretrained(str(tmp_path), sampling=SPEC)
    folder = str(tmp_path / "no-tokenizer")
    with pytest.raises(ValueError, match="dtype: expected the name of a torch dtype"):
        LogProbBoundVerifier.from_pretrained(folder, sampling=SPEC, dtype="float33")
