"""AReaL's own RLVR workflow, reward processes, padding and normalisation around a guarded group.

Only the engine is ours: `Engine` returns texts where an inference server would sample them.
"""

import asyncio
from importlib.util import find_spec

import pytest

if find_spec("areal") is None:
    pytest.skip("make test-areal: needs a separate environment", allow_module_level=True)

from areal.api import AsyncRewardWrapper, ModelResponse, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters, NormConfig
from areal.utils.data import Normalization
from areal.workflow.rlvr import RLVRWorkflow

from grpo_guard import AbstainError, Guard, Policy, presets
from grpo_guard.adapters.areal import GuardedGroup
from grpo_guard.guard.framework import FrameworkError
from tests.areal import areal_grader
from tests.helpers.characters import END, Characters
from tests.helpers.words import Words

PROMPT = [51, 43, 52]
POISONED = ["one", "two", "Hail", "one"]


class Tokenizer(Characters):
    pad_token_id = END


class Engine:
    def __init__(self, texts):
        self.left = iter(texts)

    async def agenerate(self, request):
        said = [*Characters().encode(next(self.left)), END]
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=said,
            output_logprobs=[-0.5] * len(said),
            output_versions=[3] * len(said),
        )


class Guarded(GuardedGroup, RolloutWorkflow):
    """The workflow as the page shows it."""

    def __init__(self, guard, size, **options):
        super().__init__(RLVRWorkflow(**options), guard, size=size)


def options(reward_fn=areal_grader.plain):
    return {
        "reward_fn": reward_fn,
        "gconfig": GenerationHyperparameters(n_samples=1),
        "tokenizer": Tokenizer(),
        "get_input_ids_fn": lambda data, tokenizer, thinking: PROMPT,
    }


def group_of(texts, guard):
    made = Guarded(guard, len(texts), **options())
    return asyncio.run(made.arun_episode(Engine(texts), {"messages": "3+4?", "answer": "7"}))


def advantages(group, size, **norm):
    """Advantages by AReaL's own normalisation; None for a row without a trained token."""
    config = {"mean_level": "group", "std_level": None, "group_size": size} | norm
    found = Normalization(NormConfig(**config))(group["rewards"]).tolist()
    trains = group["loss_mask"].any(dim=1).tolist()
    return [a if t else None for a, t in zip(found, trains, strict=True)]


def trained(texts, guard, **norm):
    return advantages(group_of(texts, guard), len(texts), **norm)


def reading(policy=None, verifier=None):
    return Guard(verifier or Words(), tokenizer=Characters(), policy=policy)


def nearly(values):
    return [None if v is None else pytest.approx(v, abs=1e-4) for v in values]


def test_rejected_rows_leave_the_mean_and_train_no_token():
    assert trained(POISONED, reading()) == nearly([1 / 3, -2 / 3, None, 1 / 3])


def test_rows_padded_by_areal_keep_their_tokens():
    group = group_of(POISONED, reading())
    assert group["input_ids"].shape == group["loss_mask"].shape == group["versions"].shape
    drawn = group["loss_mask"][1].bool()
    assert group["input_ids"][1][drawn].tolist() == [*Characters().encode("two"), END]
    assert group["loss_mask"][2].sum() == 0


def test_zeroed_row_stays_in_the_group():
    found = trained(POISONED, reading(Policy("zero", "zero")))
    assert found == nearly([0.5, -0.5, -0.5, 0.5])


def test_failures_keep_their_slot_and_train_nothing():
    assert trained(["one", "gone", "two"], presets.failures_only()) == nearly([0.5, None, -0.5])
    assert trained(["one", "other", "two"], presets.failures_only()) == nearly([0.5, None, -0.5])
    with pytest.raises(RuntimeError, match="sandbox"):
        group_of(["one", "gone", "two"], reading())


def test_group_without_remaining_rows_trains_nothing():
    group = group_of(["Hail", "Hail"], reading())
    assert advantages(group, 2) == [None, None]
    assert Normalization(NormConfig(mean_level="group", std_level="group", group_size=2))(
        group["rewards"]
    ).tolist() == [0.0, 0.0]


def test_deviation_counts_slots_of_left_out_rows():
    found = trained(POISONED, reading(), std_level="group")
    spread = (2 / 3 / 3) ** 0.5  # for rewards 1, 0, 2/3, 1: the mean fills the third slot
    assert found == nearly([1 / 3 / spread, -2 / 3 / spread, None, 1 / 3 / spread])


def test_missing_episode_shifts_later_groups_as_documented():
    import torch

    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])  # three of group one
    norm = NormConfig(mean_level="group", std_level="group", group_size=4)
    found = Normalization(norm)(rewards).tolist()
    assert max(map(abs, found[4:])) == pytest.approx(100_000, rel=1e-3)


def test_verifier_gets_what_areal_sampled():
    verifier = Words()
    group_of(["one", "two"], reading(verifier=verifier))
    first, ids = verifier.shown[0], (*Characters().encode("one"), END)
    assert (first.text, first.prompt_ids, first.completion_ids) == ("one", tuple(PROMPT), ids)
    assert first.sampler_logprobs == pytest.approx([-0.5] * len(ids))
    assert first.reference == "7"


def test_guarded_reward_function_runs_in_areal_processes():
    async def asked(*texts):
        ask = AsyncRewardWrapper(areal_grader.reward)
        return [await ask("3+4?", text, [51], [52], answer="7") for text in texts]

    assert asyncio.run(asked("one", "Hail", "two", "other")) == [1.0, 0.0, 0.0, 0.0]


def test_guard_failures_stop_the_group_and_unsupported_policies_are_refused():
    with pytest.raises(AbstainError):
        group_of(["unseen", "unseen"], reading(Policy("drop", "raise")))
    with pytest.raises(FrameworkError, match="turn by turn"):
        group_of(POISONED, reading(Policy(on_long="scale")))
