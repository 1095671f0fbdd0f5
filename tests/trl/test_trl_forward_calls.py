"""Which of TRL's passes are captured: the policy's before the rewards, for that batch only."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_guard import SamplingSpec
from grpo_guard.adapters.trl.forward import ReusesForward
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.reuse import ForwardReuse

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0)
COMPLETION = 12


class FakeTrainer:
    """The calls of trl 1.16 around the rewards, for PEFT whose reference disables the adapters."""

    def __init__(self, model, **attributes):
        self.model = model
        self.args = SimpleNamespace(gradient_accumulation_steps=1, steps_per_generation=1)
        self.num_iterations, self.use_vllm = 2, False
        self.vllm_importance_sampling_correction = True
        self.old_pass, self.adapter, self.failing = True, True, False
        self.answer, self.asked = (0.0, None, None), []
        vars(self).update(attributes)
        model.model.layers[0].register_forward_hook(self._adapt)
        torch.manual_seed(1)
        self.ids = torch.randint(0, 300, (4, 6 + COMPLETION))
        self.sequences = [
            Encoded(tuple(row[:6].tolist()), tuple(row[6:].tolist()), False) for row in self.ids
        ]

    def _adapt(self, module, arguments, output):
        return output * 1.7 + 0.3 if self.adapter else output

    @contextmanager
    def _without_adapter(self):
        self.adapter = False
        yield
        self.adapter = True

    def _get_per_token_logps_and_entropies(self, model, ids, mask, keep, batch_size=None):
        self.asked.append(batch_size)
        if self.answer != (None, None):  # Unsloth computes log-probs only within its loss
            with torch.no_grad():
                model(input_ids=ids, attention_mask=mask)
        return self.answer

    def _generate_and_score_completions(self, inputs):
        def forward():
            answer = self._get_per_token_logps_and_entropies(
                self.model, self.ids, torch.ones_like(self.ids), COMPLETION, batch_size=4
            )
            assert answer is self.answer

        if self.old_pass:
            forward()
        with self._without_adapter():
            forward()
        if self.failing:
            raise RuntimeError("a reward failed")
        return self.forward_reuse.score(self.sequences, SPEC)


class Trainer(ReusesForward, FakeTrainer):
    pass


def trainer_of(**attributes):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    return Trainer(model, forward_reuse=ForwardReuse(model), **attributes)


def assert_scores_the_policy(trainer, *, own):
    """Right numbers, with this many completions scored by the scorer's own passes."""
    scored, inner = [], trainer.forward_reuse.own.score

    def counting(sequences, *args, **options):
        scored.extend(sequences)
        return inner(sequences, *args, **options)

    trainer.forward_reuse.own.score = counting
    stats = trainer._generate_and_score_completions(None)
    assert len(scored) == own
    for one, other in zip(stats, inner(trainer.sequences, SPEC), strict=True):
        assert abs(one.logprob - other.logprob).max() < 1e-4
    assert trainer.forward_reuse.enabled


def test_reference_pass_does_not_replace_the_policys():
    assert_scores_the_policy(trainer_of(), own=0)


@pytest.mark.parametrize(
    "attributes",
    [
        {"num_iterations": 1},
        {"num_iterations": 1, "use_vllm": True, "vllm_importance_sampling_correction": False},
    ],
)
def test_reference_pass_alone_is_not_captured(attributes):
    assert_scores_the_policy(trainer_of(old_pass=False, **attributes), own=4)


@pytest.mark.parametrize(
    ("answer", "own"), [((0.0, None), 0), ((0.0, None, None), 0), ((None, None), 4)]
)
def test_return_values_of_any_release_are_passed_on(answer, own):
    assert_scores_the_policy(trainer_of(answer=answer), own=own)


def test_nothing_is_captured_without_a_scorer():
    trainer = trainer_of()
    trainer.forward_reuse = None
    with pytest.raises(AttributeError, match="score"):  # from the fake trainer itself
        trainer._generate_and_score_completions(None)
    assert trainer.asked == [4, 4]


def test_vllm_with_correction_has_a_pass_to_reuse():
    assert_scores_the_policy(trainer_of(num_iterations=1, use_vllm=True), own=0)


def test_rloo_always_has_a_pass_to_reuse():
    assert_scores_the_policy(trainer_of(num_iterations=1, normalize_advantages=False), own=0)


def test_trainer_with_a_different_condition_is_not_captured():
    trainer = trainer_of(old_pass=False)
    del trainer.num_iterations
    assert_scores_the_policy(trainer, own=4)


@pytest.mark.parametrize("failing", [False, True])
def test_states_are_dropped_with_their_batch(failing):
    """An update of the weights may leave no trace, and the next batch may hold the same ids."""
    trainer = trainer_of(failing=failing)
    try:
        trainer._generate_and_score_completions(None)
    except RuntimeError:
        assert failing
    passes = []
    trainer.model.model.register_forward_hook(lambda *_: passes.append(1))
    trainer.forward_reuse.score(trainer.sequences, SPEC)
    assert passes
