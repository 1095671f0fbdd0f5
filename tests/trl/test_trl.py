"""The real GRPOTrainer on CPU, with guarded reward functions."""

import asyncio

import numpy as np
import pytest

from grpo_guard import Policy, guard
from tests.helpers.rule_verifiers import Broken, NoWord
from tests.trl import tiny_trl

SENT = ("12", "Hail", "3", "x")
REWARD = {"12": 1.0, "Hail": 5.0, "3": 2.0, "x": 0.0}


def by_text(completions, **kwargs):
    return [REWARD[text] for text in completions]


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


async def by_text_async(completions, **kwargs):
    await asyncio.sleep(0)
    return [REWARD[text] for text in completions]


class Bonus:
    """A reward with its own state."""

    def __init__(self, value):
        self.value = value

    def __call__(self, prompts, completions):
        return [self.value] * len(prompts)


class AsyncBonus(Bonus):
    async def __call__(self, completions, **kwargs):
        return [self.value] * len(completions)


def train(folder, reward_funcs, **settings):
    trainer = tiny_trl.trainer(folder, reward_funcs, rollout=tiny_trl.peers(*SENT), **settings)
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_reject", "rewards"),
    [("zero", [1, 0, 2, 0]), ("drop", [1, None, 2, 0]), (-1.0, [1, -1, 2, 0])],
)
def test_rejected_peer_gets_the_advantage_of_the_policy(tmp_path, on_reject, rewards):
    verifier = NoWord()
    guarded = guard(verifier, policy=Policy(on_reject=on_reject))(by_text)
    trainer = train(tmp_path, [guarded])

    assert len(trainer.captured) == 2
    for captured in trainer.captured:
        np.testing.assert_allclose(captured, tiny_trl.advantages(rewards), atol=1e-3)
    if on_reject == "drop":
        assert trainer.captured[0][1] == 0.0
    assert trainer.reward_func_names == ["by_text"]
    first = verifier.batches[0][1]
    assert first.text == "Hail"
    assert first.node == "peer1"
    assert first.round == 0
    assert (first.group, first.slot) == (0, 1)
    assert first.task == "sums"
    assert first.completion_ids == tuple(
        trainer.processing_class("Hail")["input_ids"] + [trainer.processing_class.eos_token_id]
    )
    assert verifier.batches[1][0].round == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_reject", "totals"),
    [
        ("zero", [1 + 2 + 0.5, 0, 2 + 1 + 0.5, 0 + 1 + 0.5]),
        ("drop", [1 + 2 + 0.5, None, 2 + 1 + 0.5, 0 + 1 + 0.5]),
        (-1.0, [1 + 2 + 0.5, -1, 2 + 1 + 0.5, 0 + 1 + 0.5]),
    ],
)
def test_several_functions_share_one_verification(tmp_path, on_reject, totals):
    verifier = NoWord()
    functions = guard(verifier, policy=Policy(on_reject=on_reject))(
        [by_text_async, length, Bonus(0.25), AsyncBonus(0.25)]
    )
    trainer = train(tmp_path, functions)

    assert len(verifier.batches) == 2  # one per step, not one per function
    assert trainer.reward_func_names == ["by_text_async", "length", "Bonus", "AsyncBonus"]
    for captured in trainer.captured:
        np.testing.assert_allclose(captured, tiny_trl.advantages(totals), atol=1e-3)


def test_metrics_and_the_completions_table_show_verdicts(tmp_path):
    zero = Policy(on_reject="zero")
    trainer = train(tmp_path, guard(NoWord(), policy=zero)([by_text, length]))

    for step in trainer.state.log_history[:2]:
        assert step["guard/reject_rate"] == 0.25
        assert step["guard/accept_rate"] == 0.75
        assert step["guard/reject_rate/no_word"] == 0.25
        assert step["rewards/by_text/mean"] == 0.75
    table = trainer._logs["extra"]["guard"]  # the latest batch, as TRL prints it
    assert list(table) == ["accept", "reject: says Hail", "accept", "accept"]


@pytest.mark.slow
@pytest.mark.parametrize("conversational", [False, True])
def test_model_completions_are_verified_in_both_data_formats(tmp_path, conversational):
    verifier, seen = NoWord("1"), []

    @guard(verifier)
    def reward(prompts, completions, answer, **kwargs):
        seen.append((prompts, completions, answer))
        return [1.0 + i for i in range(len(prompts))]

    trainer = tiny_trl.trainer(tmp_path, [reward], conversational=conversational)
    trainer.train()

    assert len(verifier.batches) == len(seen) == 2
    for batch, captured, (prompts, completions, answer) in zip(
        verifier.batches, trainer.captured, seen, strict=True
    ):
        texts = [c[0]["content"] if conversational else c for c in completions]
        assert [c.text for c in batch] == texts
        assert [c.reference for c in batch] == answer
        assert [list(c.prompt) if conversational else c.prompt for c in batch] == prompts
        assert all(c.completion_ids for c in batch)
        expected = [0.0 if "1" in text else 1.0 + i for i, text in enumerate(texts)]
        np.testing.assert_allclose(captured, tiny_trl.advantages(expected), atol=1e-3)


def test_failing_verifier_leaves_its_batch_out_and_the_run_continues(tmp_path):
    trainer = train(tmp_path, guard(Broken())([by_text]))

    assert trainer.state.global_step == 2
    assert trainer.captured == [[0.0] * 4] * 2
    assert trainer.state.log_history[0]["guard/abstain_rate"] == 1.0
    assert trainer.state.log_history[0]["guard/abstain_rate/fault"] == 1.0


def test_exception_of_the_reward_function_propagates(tmp_path):
    class OwnError(Exception):
        pass

    def failing(completions, **kwargs):
        raise OwnError("the grader is down")

    with pytest.raises(OwnError, match=r"^the grader is down$"):
        train(tmp_path, guard(NoWord())([failing]))
