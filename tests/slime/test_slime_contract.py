"""slime, called as its published source calls it, next to its own baseline arithmetic."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_guard import Guard, Policy, guard
from grpo_guard.adapters.slime import (
    SlimeAdapter,
    rewards_without_left_out,
    row_from,
)
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.characters import END, Characters
from tests.helpers.rule_verifiers import NoWord


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    """The fields of slime.utils.types.Sample that reward code uses."""

    group_index: int | None = 0
    prompt: Any = "3+4?"
    tokens: list[int] | None = None
    response: Any = "seven"
    response_length: int | None = None
    label: str | None = "7"
    reward: Any = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.COMPLETED
    metadata: Any = field(default_factory=dict)

    def __post_init__(self):
        said = Characters().encode(self.response or "")
        self.tokens = [5, 6, *said] if self.tokens is None else self.tokens
        if self.response_length is None:
            self.response_length = len(said)

    def get_reward_value(self, args):
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def arguments(**more):
    usual = {
        "reward_key": None,
        "eval_reward_key": None,
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "n_samples_per_prompt": 4,
        "custom_reward_post_process_path": "grpo_guard.adapters.slime.rewards_without_left_out",
    }
    return SimpleNamespace(**usual | more)


async def correct(args, sample, **kwargs):
    return 1.0 if sample.label == "7" else 0.0


async def correct_of_group(args, samples, **kwargs):
    return [await correct(args, sample) for sample in samples]


def as_slime_trains(args, samples):
    """slime.ray.rollout.RolloutManager._post_process_rewards, for groups of equal size."""
    raw = [s.get_reward_value(args) for s in samples]
    rewards = torch.tensor(raw, dtype=torch.float).reshape(-1, args.n_samples_per_prompt)
    rewards = rewards - rewards.mean(dim=-1, keepdim=True)
    if args.advantage_estimator in ["grpo", "gspo", "cispo"] and args.grpo_std_normalization:
        rewards = rewards / (rewards.std(dim=-1, keepdim=True) + 1e-6)
    return raw, rewards.flatten().tolist()


ZERO = Policy(on_reject="zero", on_abstain="zero")


def test_single_samples_and_whole_groups():
    args, texts = arguments(), ["seven", "Hail", "seven"]
    one = guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters())(
        correct
    )  # recognised by its signature
    rewards = [asyncio.run(one(args, Sample(response=text))) for text in texts]
    assert rewards == [1.0, 0.0, 1.0]
    every = guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters(), framework="slime")(
        correct_of_group
    )
    samples = [Sample(response=text) for text in texts]
    assert asyncio.run(every(args, samples)) == [1.0, 0.0, 1.0]


def test_dicts_keep_everything_but_the_reward():
    async def graded(args, sample, **kwargs):
        return {"score": 1.0, "acc": True}

    async def graded_of_group(args, samples, **kwargs):
        return [await graded(args, sample) for sample in samples]

    args = arguments(reward_key="score")
    one = guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters())(graded)
    assert asyncio.run(one(args, Sample(response="Hail"))) == {"score": 0.0, "acc": True}
    every = guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters(), framework="slime")(
        graded_of_group
    )
    got = asyncio.run(every(args, [Sample(), Sample(response="Hail")]))
    assert [row["score"] for row in got] == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"graded: expected a dict .* \('other'\)"):
        asyncio.run(one(arguments(reward_key="other"), Sample()))
    own = arguments(reward_key="other", eval_reward_key="score")
    assert asyncio.run(one(own, Sample(response="Hail")))["score"] == 0.0


READS = Guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters())


def test_fields_of_a_sample():
    metadata = {"node": 3, "round": 4, "slot": 1, "task": "sums"}
    sample = Sample(
        metadata=metadata, status=Status.TRUNCATED, response="ab", rollout_log_probs=[-0.5, -0.25]
    )
    got = row_from(sample, READS).completion
    assert (got.prompt_ids, got.completion_ids) == ((5, 6), (97, 98))
    assert got.sampler_logprobs == (-0.5, -0.25)
    assert (got.node, got.round, got.slot, got.task) == ("3", 4, 1, "sums")
    assert (got.group, got.reference, got.finish_reason) == (0, "7", "length")


@pytest.mark.parametrize("more", [{"response_length": 0}, {"tokens": []}, {"loss_mask": [0] * 5}])
def test_text_is_judged_if_no_token_trains(more):
    row = row_from(Sample(**more), READS)
    got = row.completion
    assert (got.text, row.given) == ("seven", None)
    assert (got.prompt_ids, got.completion_ids, got.sampler_logprobs) == (None, None, None)


@pytest.mark.parametrize(
    "more",
    [
        {"loss_mask": [1]},
        {"response_length": 9},
        {"tokens": [55, 56], "response_length": 2, "loss_mask": [1, 0, 1]},  # no prompt
    ],
)
def test_mismatched_tokens_are_malformed(more):
    assert row_from(Sample(**more), READS).was_repaired


@pytest.mark.parametrize("node", [None, "n"])
def test_masked_tokens_are_given_and_the_rest_is_decoded(node):
    metadata = {} if node is None else {"node": node}
    said = [*Characters().encode("I ask."), END, *Characters().encode("[tool] 7"), 55, END]
    mask = [1] * 7 + [0] * 8 + [1] * 2
    sample = Sample(
        tokens=[5, *said], response_length=17, response="clean", loss_mask=mask, metadata=metadata
    )
    row = row_from(sample, READS)
    assert row.decoded
    assert row.completion.text == "I ask.[tool] 77"
    assert row.completion.given.tokens == ((7, 15),)
    assert row.completion.given.chars == ((6, 14),)
    assert row.completion.given.known is (node is None)


def test_slime_requires_a_tokenizer():
    with pytest.raises(FrameworkError, match=r"slime trains on token ids.*tokenizer="):
        SlimeAdapter().wrap(correct, Guard(NoWord("Hail"), policy=ZERO))


@pytest.mark.parametrize("metadata", [None, "x", {"round": "4", "slot": True}, {"round": 2**70}])
def test_invalid_metadata_names_no_slot(metadata):
    got = row_from(Sample(metadata=metadata), READS).completion
    assert (got.round, got.slot) == (None, None)


def test_response_that_is_not_text_earns_nothing():
    one = guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters())(correct)
    assert asyncio.run(one(arguments(), Sample(response=None))) == 0.0


def test_leaving_out_needs_both_halves():
    drop = Policy("drop", "skip")
    with pytest.raises(FrameworkError, match="choose on_reject"):
        SlimeAdapter().wrap(correct, Guard(NoWord("Hail"), policy=drop, tokenizer=Characters()))
    rm = SlimeAdapter(leave_out=True).wrap(
        correct, Guard(NoWord("Hail"), policy=drop, tokenizer=Characters())
    )
    args = arguments(custom_reward_post_process_path=None)
    assert asyncio.run(rm(args, Sample())) == 1.0
    with pytest.raises(FrameworkError, match="--custom-reward-post-process-path"):
        asyncio.run(rm(args, Sample(response="Hail")))


def left_out(args, rows, policy):
    """Samples as slime has them after the rewards."""
    rm = SlimeAdapter(leave_out=True).wrap(
        correct, Guard(NoWord("Hail"), policy=policy, tokenizer=Characters())
    )
    samples = [Sample(group_index=g, response=text, label=label) for g, text, label in rows]
    for sample in samples:
        sample.reward = asyncio.run(rm(args, sample))
    return samples


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("scaled", [True, False])
def test_poison_does_not_affect_the_others_baseline(estimator, scaled):
    rows = [
        (0, "a", "7"),
        (0, "b", "8"),
        (0, "c", "7"),
        (1, "d", "7"),
        (1, "e", "8"),
        (1, "f", "8"),
    ]
    poisoned = [*rows[:2], (0, "Hail", "7"), *rows[2:], (1, "Hail", "7")]
    args = arguments(
        advantage_estimator=estimator, grpo_std_normalization=scaled, n_samples_per_prompt=3
    )
    _, expected = as_slime_trains(args, left_out(args, rows, Policy("drop", "skip")))
    samples = left_out(args, poisoned, Policy("drop", "skip"))
    raw, trained = rewards_without_left_out(args, samples)
    assert trained == pytest.approx([*expected[:2], 0.0, *expected[2:], 0.0], abs=1e-6)
    assert raw == [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert [s.remove_sample for s in samples] == ["Hail" in s.response for s in samples]


def test_zero_keeps_slimes_own_arithmetic():
    args = arguments()
    samples = left_out(args, [(0, t, "7") for t in ("a", "Hail", "c", "d")], ZERO)
    assert not any(sample.remove_sample for sample in samples)
    ours, theirs = rewards_without_left_out(args, samples), as_slime_trains(args, samples)
    assert ours[0] == theirs[0]
    assert ours[1] == pytest.approx(theirs[1], abs=1e-5)
    assert ours[1][1] < 0


def test_groups_without_an_index_are_rows_in_order():
    args = arguments(n_samples_per_prompt=2, grpo_std_normalization=False)
    samples = left_out(args, [(None, t, la) for t, la in [("a", "7"), ("b", "8")] * 2], ZERO)
    assert rewards_without_left_out(args, samples)[1] == [0.5, -0.5, 0.5, -0.5]


def test_groups_of_one_or_none_train_nothing():
    args, drop = arguments(n_samples_per_prompt=2), Policy("drop", "skip")
    rows = [(0, "a", "7"), (0, "Hail", "7"), (1, "Hail", "7"), (1, "Hail", "8")]
    _, trained = rewards_without_left_out(args, left_out(args, rows, drop))
    assert trained == [0.0, 0.0, 0.0, 0.0]
    args = arguments(advantage_estimator="ppo")
    raw, trained = rewards_without_left_out(args, left_out(args, rows, drop))
    assert trained == raw == [1.0, 0.0, 0.0, 0.0]


def fanned_out(args, *rows):
    """Each sample's (rollout_id, label, text), in one group."""
    samples = left_out(args, [(0, text, label) for _, label, text in rows], Policy("drop", "skip"))
    for sample, (rollout, *_) in zip(samples, rows, strict=True):
        sample.rollout_id = rollout
    return samples


def test_rollout_with_several_samples_counts_once():
    """slime#2062: the deviation is over rollouts too."""
    rows = [(1, "7", "a"), (1, "7", "b"), (2, "8", "c")]
    args = arguments(grpo_std_normalization=False)
    _, trained = rewards_without_left_out(args, fanned_out(args, *rows))
    assert trained == [0.5, 0.5, -0.5]
    args = arguments()
    once = left_out(args, [(0, "a", "7"), (0, "c", "8")], Policy("drop", "skip"))
    (right, wrong) = rewards_without_left_out(args, once)[1]
    assert rewards_without_left_out(args, fanned_out(args, *rows))[1] == [right, right, wrong]


def test_rejected_sample_rejects_its_whole_rollout():
    args = arguments(grpo_std_normalization=False)
    samples = fanned_out(
        args, (1, "7", "a"), (1, "7", "Hail"), (2, "8", "c"), (3, "7", "d"), (None, "7", "e")
    )
    _, trained = rewards_without_left_out(args, samples)
    assert trained == pytest.approx([0.0, 0.0, -2 / 3, 1 / 3, 1 / 3])
    assert [sample.remove_sample for sample in samples] == [True, True, False, False, False]


def test_consequence_applies_to_every_segment_of_a_rollout():
    the_guard = Guard(NoWord("Hail"), policy=ZERO, tokenizer=Characters())
    rm = the_guard(correct_of_group, framework="slime")
    samples = [Sample(response=text) for text in ("seven", "Hail", "so")]
    samples[0].rollout_id = samples[1].rollout_id = 4
    assert row_from(samples[0], the_guard).completion.rollout == "4"
    assert asyncio.run(rm(arguments(), samples)) == [0.0, 0.0, 1.0]
