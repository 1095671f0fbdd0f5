"""AReaL's own RLVR workflow, reward processes, padding and normalisation, around a guarded group.

Only the engine is ours: `Engine` hands out texts where an inference server would sample them.
"""

import asyncio
from importlib.util import find_spec

import pytest

if find_spec("areal") is None:
    pytest.skip("make test-areal: has an environment of its own", allow_module_level=True)

from areal.api import AsyncRewardWrapper, ModelResponse, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters, NormConfig
from areal.utils.data import Normalization
from areal.workflow.rlvr import RLVRWorkflow

from grpo_guard import AbstainError, Guard, Policy, presets
from grpo_guard.adapters.areal import GuardedGroup
from grpo_guard.framework import FrameworkError
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
    """As the page shows it."""

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
    """By AReaL's own normalisation; None for a row of which no token trains."""
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


def test_what_is_rejected_leaves_the_mean_and_trains_no_token():
    assert trained(POISONED, reading()) == nearly([1 / 3, -2 / 3, None, 1 / 3])


def test_rows_of_different_length_are_padded_by_areal_and_keep_their_tokens():
    group = group_of(POISONED, reading())
    assert group["input_ids"].shape == group["loss_mask"].shape == group["versions"].shape
    drawn = group["loss_mask"][1].bool()
    assert group["input_ids"][1][drawn].tolist() == [*Characters().encode("two"), END]
    assert group["loss_mask"][2].sum() == 0


def test_zero_stays_in_the_group():
    found = trained(POISONED, reading(Policy("zero", "zero")))
    assert found == nearly([0.5, -0.5, -0.5, 0.5])


def test_failures_keep_their_place_and_train_nothing():
    assert trained(["one", "gone", "two"], presets.failures_only()) == nearly([0.5, None, -0.5])
    assert trained(["one", "other", "two"], presets.failures_only()) == nearly([0.5, None, -0.5])
    with pytest.raises(RuntimeError, match="sandbox"):
        group_of(["one", "gone", "two"], reading())


def test_a_group_of_which_nothing_stays_has_no_advantage_and_no_token():
    group = group_of(["Hail", "Hail"], reading())
    assert advantages(group, 2) == [None, None]
    assert Normalization(NormConfig(mean_level="group", std_level="group", group_size=2))(
        group["rewards"]
    ).tolist() == [0.0, 0.0]


def test_the_deviation_counts_the_place_of_what_is_left_out():
    found = trained(POISONED, reading(), std_level="group")
    spread = (2 / 3 / 3) ** 0.5  # of 1, 0, 2/3, 1: the mean is in the third place
    assert found == nearly([1 / 3 / spread, -2 / 3 / spread, None, 1 / 3 / spread])


def test_one_episode_less_shifts_every_later_group_as_the_page_says():
    import torch

    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0])  # three of the first group came
    norm = NormConfig(mean_level="group", std_level="group", group_size=4)
    found = Normalization(norm)(rewards).tolist()
    assert max(map(abs, found[4:])) == pytest.approx(100_000, rel=1e-3)


def test_the_verifier_gets_what_areal_sampled():
    verifier = Words()
    group_of(["one", "two"], reading(verifier=verifier))
    first, ids = verifier.shown[0], (*Characters().encode("one"), END)
    assert (first.text, first.prompt_ids, first.completion_ids) == ("one", tuple(PROMPT), ids)
    assert first.sampler_logprobs == pytest.approx([-0.5] * len(ids))
    assert first.reference == "7"


def test_a_guarded_reward_function_runs_in_areals_processes():
    async def asked(*texts):
        ask = AsyncRewardWrapper(areal_grader.reward)
        return [await ask("3+4?", text, [51], [52], answer="7") for text in texts]

    assert asyncio.run(asked("one", "Hail", "two", "other")) == [1.0, 0.0, 0.0, 0.0]


def test_failures_of_the_guard_stop_the_group_and_what_cannot_be_done_is_refused():
    with pytest.raises(AbstainError):
        group_of(["unseen", "unseen"], reading(Policy("drop", "raise")))
    with pytest.raises(FrameworkError, match="turn by turn"):
        group_of(POISONED, reading(Policy(on_long="scale")))
