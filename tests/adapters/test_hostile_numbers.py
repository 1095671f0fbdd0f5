"""Hostile numbers through every adapter.

None may raise, none may reach a trainer unchanged, and the other rows of the batch keep what they
earn.
"""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_guard import Completion, Guard
from grpo_guard.adapters.openrlhf.rollout import Rollout
from grpo_guard.adapters.plain_numbers import LOG_PROBS, log_probs_from, number_from
from grpo_guard.adapters.sequences import mask_from
from grpo_guard.adapters.slime import SlimeAdapter, rewards_without_left_out
from grpo_guard.adapters.verl.batch import HookData
from grpo_guard.adapters.verl.groups import finite
from grpo_guard.core.completion import MAX_TOKENS, CompletionError
from grpo_guard.core.detokenizer import Detokenizer
from tests.adapters.hostile_entries import ENTRIES
from tests.adapters.hostile_tokenizers import Characters
from tests.adapters.test_hostile_fields import judged
from tests.helpers.hostile_numbers import RefusesToBeRead, lists, numbers

SCALARS = {
    "trl": ["round", "slot", "answer"],
    "trl_peers": ["slot", "round", "node"],
    "ms_swift": ["answer"],
    "verl": ["ground_truth"],
    "verl_manager": ["session_id", "reward_model"],
    "openrlhf": ["label"],
    "openrlhf_agent": ["label", "truncated"],
    "slime": ["response_length", "group_index", "label", "metadata"],
    "slime_group": ["response_length", "group_index"],
    "verifiers": ["parent", "answer"],
    "prime_rl": ["parent", "answer"],
}
LISTS = {
    "trl": {"guard_mask": 2, "completion_ids": 2, "prompt_ids": 2},
    "trl_peers": {"completion": 3, "given": 2},
    "verl_manager": {"log_probs": 6},
    "openrlhf_agent": {"rollout_log_probs": 6, "observation_tokens": 6, "action_ranges": 1},
    "slime": {"rollout_log_probs": 2, "loss_mask": 2, "tokens": 4},
    "slime_group": {"rollout_log_probs": 2, "loss_mask": 2},
    "verifiers": {"logprobs": 1, "mask": 2, "ids": 2},
    "prime_rl": {"logprobs": 1, "mask": 2, "ids": 2},
    "atropos": {"inference_logprobs": 3, "masks": 3, "tokens": 3},
    "tinker": {"logprobs": 2, "tokens": 2},
    "areal": {"prompt_ids": 1, "completion_ids": 2},
}


def rewards_with(name, field, value):
    """Return the rewards of three rows, of which the second has this value."""
    entry = ENTRIES[name]
    rows = [dict(entry.fields) for _ in range(3)]
    rows[1][field] = value
    return judged(entry, rows)


ALLOWED = ([1.0, 0.0, 1.0], [1.0, 1.0, 1.0])
"""The others keep their rewards, and the row's own is that of a judged or a malformed one."""


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, fs in SCALARS.items() for f in fs])
def test_hostile_value_in_place_of_a_number(name, field):
    for value in numbers():
        assert rewards_with(name, field, value) in ALLOWED


@pytest.mark.parametrize(
    ("name", "field", "length"), [(n, f, k) for n, fs in LISTS.items() for f, k in fs.items()]
)
def test_hostile_value_in_place_of_a_list_of_numbers(name, field, length):
    for value in lists(length):
        if value is not None or field not in ("action_ranges", "observation_tokens"):
            assert rewards_with(name, field, value) in ALLOWED


@pytest.mark.parametrize("mask", [7, "01", {0: 1}, [0.5, 1], ["0", 1], [math.nan, 0], range(2)])
def test_invalid_mask_makes_its_row_malformed(mask):
    rows = [dict(ENTRIES["trl"].fields) for _ in range(3)]
    rows[1]["guard_mask"] = mask
    assert judged(ENTRIES["trl"], rows) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("node", [None, "n"])
def test_mask_with_too_many_spans_makes_its_row_malformed(node):
    """It would be judged as a whole, while only a part of the author's choosing would train."""
    from grpo_guard.adapters.trl.batch import rows_from
    from grpo_guard.core.given import MAX_SPANS

    n = 2 * MAX_SPANS + 2
    columns = {"node": [node]} if node else {}
    (row,) = rows_from(
        {"prompts": ["q"], "completions": ["a" * n], "completion_ids": [[97] * n],
         "guard_mask": [[1, 0] * (n // 2)], **columns},
        tokenizer=Characters(),
    )  # fmt: skip
    assert row.was_repaired


@pytest.mark.parametrize("ids", [itertools.count(), itertools.repeat(97), range(3 * 10**7)])
def test_endless_ids_are_not_decoded(ids):
    with pytest.raises(TypeError, match="expected a list"):
        Detokenizer.of(Characters()).plain(ids)


@pytest.mark.parametrize(
    "mask", [[1, 0], (True, False), np.array([1, 0]), torch.tensor([1, 0]), [1.0, 0.0], [1, 0, 1]]
)
def test_masks_of_any_sequence_type_are_read(mask):
    assert mask_from(mask, 2) == [1, 0]


def test_generator_of_spans_is_read_once():
    """A second reading would find nothing, so the tool's tokens were trained on."""
    from types import SimpleNamespace as Fields

    from grpo_guard.adapters.trl.peers import Sent, peer_rollouts

    trainer = Fields(
        processing_class=Characters(), model=Fields(config=Fields(vocab_size=128)),
        accelerator=Fields(unwrap_model=lambda model: model), max_completion_length=64,
        state=Fields(global_step=5),
    )  # fmt: skip
    sent = Sent("n", [5, 6, 7, 8, 3], given=((a, b) for a, b in [(1, 3)]))
    assert peer_rollouts(["3+4?"], [sent], trainer)["env_mask"] == [[1, 0, 0, 1, 1]]


def test_unreadable_sample_earns_nothing():
    from tests.adapters.hostile_entries import slime_samples
    from tests.helpers.words import Words

    honest = slime_samples([ENTRIES["slime"].fields])[0]
    guard = Guard(Words(), tokenizer=Characters())

    def rm_of_groups(args, samples):
        return [1.0] * len(samples)

    rm = SlimeAdapter().wrap(rm_of_groups, guard)
    assert rm(None, [honest, RefusesToBeRead(), honest]) == [1.0, 0.0, 1.0]


def test_slime_rewards_stay_finite_after_normalization():
    from types import SimpleNamespace as Fields

    for value in numbers():
        samples = [
            Fields(get_reward_value=lambda args, r=r: r, group_index=0)
            for r in (1.0, value, 0.0, 1.0)
        ]
        for estimator in ("grpo", "ppo"):
            args = Fields(advantage_estimator=estimator, rewards_normalization=True,
                          grpo_std_normalization=True, n_samples_per_prompt=4)  # fmt: skip
            raw, trained = rewards_without_left_out(args, samples)
            assert [raw[i] for i in (0, 2, 3)] == [1.0, 0.0, 1.0]
            assert np.isfinite(np.array([*raw, *trained], dtype=np.float32)).all()


def test_verl_rewards_are_finite_in_float32():
    assert [finite(x) for x in (1.0, 1e39, math.inf, -math.inf, math.nan, None)] == [
        1.0, None, None, None, None, None,
    ]  # fmt: skip
    assert not HookData(4).unusable


@pytest.mark.slow
def test_huge_range_of_ids_costs_little_memory():
    refused = f"completion_ids: expected at most {MAX_TOKENS}"
    tracemalloc.start()
    with pytest.raises(CompletionError, match=refused):
        Completion("3+4?", "seven", completion_ids=range(3 * 10**7))
    assert tracemalloc.get_traced_memory()[1] < 150_000_000
    tracemalloc.stop()
    endless = itertools.count()
    with pytest.raises(CompletionError, match=refused):
        Completion("3+4?", "seven", completion_ids=endless)
    assert next(endless) <= MAX_TOKENS + 1
    for ids in (range(3 * 10**7), endless, iter(int, 1)):
        with pytest.raises(CompletionError, match="sampler_logprobs"):
            Completion("3+4?", "seven", sampler_logprobs=ids)


def test_prompt_changed_by_an_agent_is_not_trusted():
    response = {"observation_tokens": [51, 55, 3], "action_ranges": [(1, 3)], "prompt": "3"}
    of = Rollout(response | {"node": "eve"}, 8, asked="3")
    assert of.row(("3", "7", None), "g", 0).completion.prompt_trusted
    assert not of.row(("3. 2 + 2 = 5", "7", None), "g", 0).completion.prompt_trusted
    own = Rollout(response, 8, asked="3")
    assert own.row(("3. 2 + 2 = 5", "7", None), "g", 0).completion.prompt_trusted


@example(2**53 + 1)
@given(st.floats() | st.integers() | st.text() | st.none() | st.booleans() | st.complex_numbers())
def test_parsed_numbers_are_finite_in_range_and_normal(value):
    for least, most in ((-1.0, 1.0), LOG_PROBS, (-math.inf, math.inf)):
        number = number_from(value, least, most)
        right = type(value) in (int, float) and abs(value) < 1.8e308 and least <= value <= most
        assert (number is not None) is right
        if number is not None:
            assert type(number) is float
            assert number == 0 or np.float32(abs(number)) >= np.finfo(np.float32).tiny
            # An integer beyond 2 ** 53 becomes the nearest float.
            assert number == float(value if number else 0) or abs(value) < np.finfo(np.float32).tiny


def test_numpy_and_torch_numbers_become_plain_floats():
    for value in (0.5, np.float32(0.5), np.float16(0.5), np.array(0.5), torch.tensor(0.5)):
        assert number_from(value) == 0.5
        assert type(number_from(value)) is float
    for values in ([-0.5] * 2, (-0.5,) * 2, np.full(2, -0.5), torch.full((2,), -0.5)):
        assert log_probs_from(values, 2) == [-0.5, -0.5]
        assert log_probs_from(values, 3) is None
