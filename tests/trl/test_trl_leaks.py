"""What a trainer does to rewards after the veto: prevented from undoing it, or refused."""

import logging

import numpy as np
import pytest

from grpo_guard import Guard, Policy, guard
from grpo_guard.adapters.trl.peers import Sent, peer_rollouts
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl
from tests.trl.test_trl_trainer import SENT, Guarded, GuardedRLOO, Odd, by_text, length, odd

DROP = Policy(on_reject="drop")


def rloo_with_kl(folder, policy, *, mixin, **settings):
    functions, kind, extra = [odd], GuardedRLOO, {"guard": Guard(Odd(), policy=policy)}
    if not mixin:
        functions, kind, extra = guard(Odd(), policy=policy)([odd]), tiny_trl.CapturingRLOO, {}
    made = tiny_trl.trainer(folder, functions, kind=kind, extra=extra, max_steps=1, **settings)
    made.train()
    return made.captured[0]


@pytest.mark.slow
@pytest.mark.parametrize("mixin", [False, True])
@pytest.mark.parametrize("policy", [Policy("zero"), Policy(-1.0), Policy("drop", "zero")])
def test_kl_is_not_added_to_vetoed_rewards(tmp_path, mixin, policy):
    """RLOO subtracts the KL of the sample, which is negative if the reference likes it."""
    with pytest.raises(FrameworkError, match=r"beta times the KL from rewards after the veto"):
        rloo_with_kl(tmp_path, policy, mixin=mixin, reference=True, beta=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("mixin", [False, True])
def test_kl_is_not_added_to_dropped_rewards(tmp_path, mixin):
    captured = rloo_with_kl(tmp_path, DROP, mixin=mixin, reference=True, beta=0.05)
    assert captured[1] == captured[3] == 0.0
    assert captured[0] == -captured[2] != 0.0


def plain(folder, functions, **settings):
    settings = {"rollout": tiny_trl.peers(*SENT), "max_steps": 1} | settings
    made = tiny_trl.trainer(folder, functions, **settings)
    made.train()
    return made


async def length_async(completions, **kwargs):
    return [float(len(text)) for text in completions]


@pytest.mark.slow
@pytest.mark.parametrize("second", [length, length_async])
def test_negatively_weighted_function_is_refused_before_training(tmp_path, second):
    made = tiny_trl.trainer(
        tmp_path,
        guard(NoWord())([by_text, second]),
        rollout=tiny_trl.peers(*SENT),
        reward_weights=[1.0, -0.5],
    )
    with pytest.raises(FrameworkError, match="a weight below 0 turns the veto's 0 into"):
        made.train()
    assert made.captured == []


@pytest.mark.slow
def test_unguarded_function_warns_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        zero = guard(NoWord(), policy=Policy("zero"))
        plain(tmp_path, [*zero([by_text, length_async])], num_iterations=2)
        assert not caplog.messages
        plain(tmp_path, [guard(NoWord())(by_text), length], max_steps=2)
    (message,) = caplog.messages
    assert "reward functions without a guard next to guarded ones: length." in message


def experimental(base, **members):
    """A trainer of `trl.experimental` with its own way from rewards to advantages."""

    def scored(self, inputs):
        return base._generate_and_score_completions(self, inputs)

    members |= {
        "__module__": "trl.experimental.its.own",
        "_generate_and_score_completions": scored,
    }
    return type("Buffered", (base,), members)


@pytest.mark.slow
def test_trainer_that_counts_none_as_0_refuses_drop(tmp_path):
    kind = type("Mine", (tiny_trl.Captures, experimental(tiny_trl.GRPOTrainer)), {})
    for policy in (DROP, Policy()):
        with pytest.raises(FrameworkError, match="Buffered counts a completion without reward as"):
            plain(tmp_path, guard(NoWord(), policy=policy)([by_text]), kind=kind)
    made = plain(tmp_path, guard(NoWord(), policy=Policy("zero", "zero"))([by_text]), kind=kind)
    np.testing.assert_allclose(made.captured[0], tiny_trl.advantages([1, 0, 2, 0]), atol=1e-3)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("grpo_with_replay_buffer", "GRPOWithReplayBufferTrainer"),
        ("gfpo", "GFPOTrainer"),
        ("dppo", "DPPOTrainer"),
        ("async_grpo", "AsyncGRPOTrainer"),
        ("sdpo", "SDPOTrainer"),
        ("online_dpo", "OnlineDPOTrainer"),
        ("a2po", "A2POTrainer"),
    ],
)
def test_mixin_refuses_unsupported_trainers(module, name):
    base = getattr(pytest.importorskip(f"trl.experimental.{module}"), name)
    kind = type("Mine", (GuardedTrainer, base), {})
    with pytest.raises(FrameworkError, match="its completions would not be guarded"):
        kind("a model that is never loaded", [by_text], guard=Guard(NoWord()))


def test_mixin_over_a_trainer_with_its_own_loss(tmp_path):
    gmpo = pytest.importorskip("trl.experimental.gmpo")
    kind = type("Mine", (tiny_trl.Captures, GuardedTrainer, gmpo.GMPOTrainer), {})
    extra = {"guard": Guard(NoWord(), policy=DROP)}
    made = plain(tmp_path, [by_text], kind=kind, extra=extra, configuration=gmpo.GMPOConfig)
    np.testing.assert_allclose(made.captured[0], tiny_trl.advantages([1, None, 2, 0]), atol=1e-3)


# As Qwen3's in trl's chat_template_utils: a first "<think>" drops the text before it.
THINKS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {
            "open": "<think>",
            "close_pattern": r"</think>\s*",
            "content": "text",
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("mixin", [False, True])
def test_chat_template_cannot_hide_text(tmp_path, mixin):
    texts = ("12", "Hail<think>a</think>12", "<think>b</think>3", "x")
    verifier, seen = NoWord(), []

    def rollout(prompts, trainer):
        sent = [Sent("n", text) for text in texts]
        return peer_rollouts(prompts, sent, trainer)

    def reward(completions, **kwargs):
        seen.append([message["content"] for (message,) in completions])
        return [1.0, 1.0, 2.0, 0.0]

    the_guard = Guard(verifier, policy=DROP)
    functions, kind, extra = [reward], Guarded, {"guard": the_guard}
    if not mixin:
        functions, kind, extra = [the_guard(reward)], tiny_trl.CapturingTrainer, {}
    made = tiny_trl.trainer(
        tmp_path,
        functions,
        kind=kind,
        extra=extra,
        rollout=rollout,
        conversational=True,
        max_steps=1,
        max_completion_length=32,
    )
    made.processing_class.response_template = THINKS
    made.train()
    assert seen[0][1] in ("12", texts[1])  # trl 1.6 shows the text; newer releases hide it
    assert [c.text for c in verifier.batches[0]] == list(texts)
    np.testing.assert_allclose(
        made.captured[0], tiny_trl.advantages([1.0, None, 2.0, 0.0]), atol=1e-3
    )


def test_object_that_is_not_a_guard_is_refused(tmp_path):
    for wrong in (NoWord(), guard(NoWord())):
        with pytest.raises(
            TypeError, match=r"guard: expected a Guard\(verifier, policy=...\), got"
        ):
            tiny_trl.trainer(tmp_path, [odd], kind=GuardedRLOO, extra={"guard": wrong}, beta=0.0)
