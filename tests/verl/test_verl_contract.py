"""verl's documented call: one completion, by keywords, a number or a dict with "score"."""

import asyncio
import inspect

import numpy as np
import pytest

from grpo_guard import AbstainError, Policy, guard
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import Broken, NoWord

ZERO = Policy(on_abstain="zero")


def call(text="fine", **more):
    return {
        "data_source": "openai/gsm8k",
        "solution_str": text,
        "ground_truth": "7",
        "extra_info": {"question": "3+4?", "num_turns": 1},
        **more,
    }


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1


def as_dict(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1.0, "acc": True, "tokenizer": kwargs.get("reward_model_tokenizer")}


async def compute_score_async(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0)
    return 1.0


class AsyncObject:
    async def __call__(self, data_source, solution_str, ground_truth, extra_info=None):
        return 1.0


def test_numbers_and_dicts():
    number = guard(NoWord(), policy=ZERO)(compute_score)
    assert number.__name__ == "compute_score"
    assert number(**call()) == 1.0
    assert number(**call("Hail")) == 0.0
    # A strict signature survives the keywords that verl adds with a reward model.
    assert number(**call(reward_router_address="a:1", reward_model_tokenizer=None)) == 1.0
    scores = guard(NoWord(), policy=ZERO)(as_dict)
    assert scores(**call(reward_model_tokenizer="t")) == {
        "score": 1.0,
        "acc": True,
        "tokenizer": "t",
    }
    assert scores(**call("Hail"))["score"] == 0.0
    assert guard(NoWord(), policy=Policy(-1.0, "zero"))(compute_score)(**call("Hail")) == -1.0


@pytest.mark.parametrize("reward", [compute_score_async, AsyncObject()])
def test_async_becomes_a_function_that_verl_recognises(reward):
    guarded = guard(NoWord(), policy=ZERO)(reward)
    assert inspect.iscoroutinefunction(guarded)
    assert asyncio.run(guarded(**call())) == 1.0
    assert asyncio.run(guarded(**call("Hail"))) == 0.0


@pytest.mark.parametrize(
    ("extra_info", "prompt"),
    [
        ({"question": "q"}, "q"),
        ({"prompt": "p", "question": "q"}, "p"),
        (
            {"raw_prompt": np.array([{"role": "user", "content": "u"}], dtype=object)},
            ({"role": "user", "content": "u"},),
        ),
        ({"prompt": 3}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_source_of_the_prompt(extra_info, prompt):
    verifier = NoWord()
    guard(verifier, policy=ZERO)(compute_score)(**call(extra_info=extra_info))
    ((completion,),) = verifier.batches
    assert completion.prompt == prompt
    assert (completion.text, completion.reference, completion.task) == ("fine", "7", "openai/gsm8k")


@pytest.mark.parametrize(("on_abstain", "score"), [("zero", 0.0), ("pass", 1.0)])
def test_abstentions_follow_the_policy(on_abstain, score):
    guarded = guard(Broken(), policy=Policy(on_abstain=on_abstain))(compute_score)
    assert guarded(**call()) == score


def test_raise_policy_stops_the_run():
    guarded = guard(Broken(), policy=Policy(on_abstain="raise"))(compute_score)
    with pytest.raises(AbstainError):
        guarded(**call())


def test_length_scaling_needs_the_whole_group():
    with pytest.raises(FrameworkError, match=r'one completion at a time.*choose on_long="keep"'):
        guard(NoWord(), policy=Policy(on_abstain="zero", on_long="scale"))(compute_score)


@pytest.mark.parametrize("policy", [Policy(on_abstain="skip"), Policy(on_reject="drop")])
def test_unsupported_policies_are_refused(policy):
    with pytest.raises(FrameworkError, match=r"verl cannot leave .* choose on_"):
        guard(NoWord(), policy=policy)(compute_score)


def test_list_and_dict_without_score_are_errors():
    with pytest.raises(FrameworkError, match="one reward function"):
        guard(NoWord(), policy=ZERO)([compute_score])

    def no_score(data_source, solution_str, ground_truth):
        return {"acc": 1.0}

    with pytest.raises(ValueError, match="no_score: expected a dict with 'score'"):
        guard(NoWord(), policy=ZERO)(no_score)(**call())
