"""The trainer's scoring forward reused: same verdicts, no second pass."""

import random

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_guard import Guard, LogProbBoundVerifier, Policy, SamplingSpec, ScreensVerifier
from grpo_guard.adapters.trl.forward import ReusesForward, reuse_of
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.reuse import ForwardReuse
from tests.trl.tiny_trl import one_bad_peer

TASK = WordProblems()
SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=96)


class Trainer(ReusesForward, GRPOTrainer):
    pass


class Guarded(GuardedTrainer, GRPOTrainer):
    pass


def train(tmp_path, *, bf16, num_iterations, decorated=True, given=True, **options):
    """Return (verdicts by node, number of completions scored by a separate pass).

    With ``given=False`` the verifier scores the model, and nothing is said about reuse.
    """
    model, tok = load_bundled()
    verdicts, own = [], []
    verifier = (
        LogProbBoundVerifier(None, tok, scorer=ForwardReuse(model), sampling=SPEC)
        if given
        else LogProbBoundVerifier(model, tok, sampling=SPEC)
    )
    passes = verifier.scorer.own if given else verifier.scorer
    inner = passes.score
    if given:
        options["forward_reuse"] = verifier.scorer

    def counting(sequences, *args, **options):
        own.append(len(sequences))
        return inner(sequences, *args, **options)

    passes.score = counting

    class Notes:
        def record(self, batch, found):
            verdicts.extend((c.node, v) for c, v in zip(batch, found, strict=True))

    def reward(completions, answer, **kwargs):
        return [TASK.reward(c, a) for c, a in zip(completions, answer, strict=True)]

    the_guard = Guard(verifier, policy=Policy(on_reject="drop"), ledger=Notes())
    kind, extra = (Trainer, {}) if decorated else (Guarded, {"guard": the_guard})

    rng = random.Random(0)
    problems = [TASK.sample(rng) for _ in range(16)]
    kind(
        model=model,
        reward_funcs=[the_guard(reward) if decorated else reward],
        **extra,
        **options,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=16,
            num_generations=4,
            num_iterations=num_iterations,
            max_completion_length=96,
            learning_rate=1e-3,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            bf16=bf16,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=0,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": p.prompt, "answer": p.answer} for p in problems]
        ),
        processing_class=tok,
        rollout_func=one_bad_peer(problems),
    ).train()
    return verdicts, sum(own)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bf16", "decorated", "given"),
    [(False, True, True), (True, True, True), (False, False, True), (False, False, False)],
)
def test_scoring_forward_is_reused_and_the_bad_peer_is_caught(tmp_path, bf16, decorated, given):
    verdicts, own = train(tmp_path, bf16=bf16, num_iterations=2, decorated=decorated, given=given)
    assert own == 0
    assert len(verdicts) == 32  # two generation batches of sixteen
    assert all(v.rejected for node, v in verdicts if node == "peer3")
    assert not any(v.rejected for node, v in verdicts if node != "peer3")


@pytest.mark.slow
def test_verifier_runs_its_own_forward_if_there_is_none(tmp_path):
    verdicts, own = train(tmp_path, bf16=False, num_iterations=1)
    assert own == len(verdicts) == 64
    assert all(v.rejected for node, v in verdicts if node == "peer3")


@pytest.mark.slow
def test_reuse_can_be_switched_off(tmp_path):
    verdicts, own = train(
        tmp_path, bf16=False, num_iterations=2, decorated=False, given=False, forward_reuse=False
    )
    assert own == len(verdicts) == 32


def test_only_the_object_that_is_trained_is_reused():
    (model, tok), (copy, _) = load_bundled(), load_bundled()
    one = LogProbBoundVerifier(model, tok, sampling=SPEC)
    two = LogProbBoundVerifier(copy, tok, sampling=SPEC)
    again = LogProbBoundVerifier(model, tok, sampling=SPEC)
    other, passes = two.scorer, one.scorer
    reuse = reuse_of(one & (two | again), model)
    assert reuse.own is passes
    assert one.scorer is again.scorer is reuse
    assert two.scorer is other
    assert reuse_of(one & two, model) is reuse  # a second trainer's
    assert reuse_of(ScreensVerifier() & two, model) is None


def captured(model, tok, text="7 + 5 = 12"):
    """A scorer that has captured one padded batch of two, and the sequences in it."""
    scorer = ForwardReuse(model)
    prompts = [tok.encode("Tom has 7 apples. How many?"), tok.encode("Ann")]
    ids = [*tok.encode(text, add_special_tokens=False), tok.eos_token_id]
    width = max(map(len, prompts))
    rows = [[0] * (width - len(p)) + p + ids for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * (len(p) + len(ids)) for p in prompts]
    input_ids, attention_mask = torch.tensor(rows), torch.tensor(mask)
    with torch.no_grad(), scorer.capture(input_ids, attention_mask, len(ids)):
        model(input_ids=input_ids, attention_mask=attention_mask)
    return scorer, [Encoded(tuple(p), tuple(ids), False) for p in prompts]


def test_reused_states_match_an_own_pass_until_the_weights_change():
    model, tok = load_bundled()
    scorer, sequences = captured(model, tok)
    expected = scorer.own.score(sequences, SPEC)
    scorer.score(sequences, SPEC)  # whose first call checks one row
    model_calls = []
    handle = model.register_forward_hook(lambda *_: model_calls.append(1))
    body_handle = model.model.register_forward_hook(lambda *_: model_calls.append(1))
    reused = scorer.score(sequences, SPEC)
    assert not model_calls
    for a, b in zip(reused, expected, strict=True):
        torch.testing.assert_close(
            torch.tensor(a.logprob), torch.tensor(b.logprob), atol=1e-4, rtol=0
        )
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)  # as an optimizer's step does
    moved = scorer.score(sequences, SPEC)
    assert model_calls
    assert abs(moved[0].logprob - expected[0].logprob).max() > 1e-3
    handle.remove(), body_handle.remove()


def test_random_passes_and_different_numbers_are_not_reused():
    model, tok = load_bundled()
    scorer = ForwardReuse(model)
    ids = torch.tensor([tok.encode("Tom has 7 apples.")])
    dropout = torch.nn.Dropout(0.1).train()
    model.add_module("some_dropout", dropout)
    with torch.no_grad(), scorer.capture(ids, torch.ones_like(ids), 3):
        model(input_ids=ids)
    assert scorer._batch is None
    del model.some_dropout

    shifted, sequences = (
        ForwardReuse(model),
        [Encoded(tuple(ids[0, :-3].tolist()), tuple(ids[0, -3:].tolist()), False)],
    )
    hook = model.model.register_forward_hook(
        lambda m, a, out: setattr(out, "last_hidden_state", out.last_hidden_state * 2)
    )
    with torch.no_grad(), shifted.capture(ids, torch.ones_like(ids), 3):
        model(input_ids=ids)
        hook.remove()
    assert len(shifted.score(sequences, SPEC)[0]) == 3
    assert not shifted.enabled
