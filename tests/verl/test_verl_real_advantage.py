"""verl's advantages and loss denominators around rows that the guard left out."""

import inspect

import numpy as np
import pytest
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import (
    AdvantageEstimator,
    agg_loss,
    compute_grpo_outcome_advantage,
    get_adv_estimator_fn,
)

from grpo_guard.adapters.verl.plugin import compute_guarded_advantage
from grpo_guard.adapters.verl.settings import _MEAN_IS_NOTHING


def batch(scores, left_out=(), groups=None, tokens=3):
    rewards = torch.zeros(len(scores), tokens)
    rewards[:, -1] = torch.tensor(scores)
    mask = torch.ones(len(scores), tokens)
    mask[list(left_out)] = 0
    return rewards, mask, np.array(list(groups or "a" * len(scores)), dtype=object)


def exact(scores, left_out=(), groups=None, by_std=True):
    made = compute_guarded_advantage(
        *batch(scores, left_out, groups), config={"norm_adv_by_std_in_grpo": by_std}
    )
    return made[0][:, 0].tolist()


@pytest.mark.parametrize("by_std", [True, False])
def test_left_out_rows_do_not_affect_the_others(by_std):
    scores = [1.0, 0.0, 0.3, 1.0, 0.0, 0.0]
    alone = compute_grpo_outcome_advantage(*batch(scores[:2] + scores[3:]), 1e-6, by_std)
    kept = alone[0][:, 0].tolist()
    for neutral in (0.4, 100.0, -3.0):
        scores[2] = neutral
        assert exact(scores, [2], by_std=by_std) == pytest.approx([*kept[:2], 0.0, *kept[2:]])


def test_matches_verl_with_nothing_left_out():
    rewards = batch([1.0, 0.0, 1.0, 0.5, 0.5, 0.0], groups="aaabbc")
    theirs = compute_grpo_outcome_advantage(*rewards)[0]
    assert torch.equal(compute_guarded_advantage(*rewards)[0], theirs)


def test_last_of_its_group_and_groups_of_one():
    # b lost its only sibling; c never had one.
    assert exact([1.0, 5.0, 1.0], [1], "bbc", by_std=False) == [0.0, 0.0, 1.0]
    assert exact([1.0, 5.0], [0, 1]) == [0.0, 0.0]


def test_mean_as_score_keeps_verls_baseline():
    with_it = compute_grpo_outcome_advantage(*batch([1.0, 1 / 3, 0.0, 0.0]), 1e-6, False)[0]
    without = compute_grpo_outcome_advantage(*batch([1.0, 0.0, 0.0]), 1e-6, False)[0]
    assert with_it[[0, 2, 3], 0].tolist() == pytest.approx(without[:, 0].tolist())
    assert with_it[1, 0].item() == pytest.approx(0.0)


def test_loss_denominators():
    """As docs/verl.md says: verl's token mean excludes the row, its sequence means keep it."""
    loss, mask = torch.ones(6, 4), torch.ones(6, 4)
    mask[1] = 0
    modes = {"token-mean": 1.0, "seq-mean-token-mean": 5 / 6, "seq-mean-token-sum": 20 / 6}
    for mode, value in modes.items():
        assert agg_loss(loss, mask, mode, global_batch_size=6).item() == pytest.approx(value)
    nothing = agg_loss(loss * 0, mask * 0, "token-mean")
    assert torch.isnan(nothing)  # a mini-batch without remaining rows


def of(estimator, scores, left_out=(), groups=None, tokens=3):
    """verl's advantages by any estimator, with made-up values for its other inputs."""
    rewards, mask, index = batch(scores, left_out, groups, tokens)
    function = get_adv_estimator_fn(estimator)
    given = {
        "reward_baselines": torch.full((len(scores),), 0.25),
        "old_log_probs": torch.full_like(rewards, -1.0),
        "sum_pi_squared": torch.full_like(rewards, 0.5),
    }
    named = inspect.signature(function).parameters
    more = {name: value for name, value in given.items() if name in named}
    config = AlgoConfig(adv_estimator=estimator)
    return function(
        token_level_rewards=rewards, response_mask=mask, index=index, config=config, **more
    )[0]


# An easy group with a row at its mean, as left out without the hook, and a hard one.
EASY_AND_HARD = ([1.0, 1.0, 0.8, 0.4, 0.0, 0.0, 0.0, 0.2], "aaaabbbb")


@pytest.mark.parametrize("estimator", sorted(_MEAN_IS_NOTHING))
def test_group_mean_earns_nothing(estimator):
    scores, groups = EASY_AND_HARD
    assert of(estimator, scores, groups=groups)[2].tolist() == pytest.approx([0.0] * 3, abs=1e-5)


@pytest.mark.parametrize("estimator", ["reinforce_plus_plus", "remax"])
def test_hook_removes_rows_under_estimators_where_the_mean_earns(estimator):
    """Negative control of the list: verl's own code, without the hook and with it."""
    scores, groups = EASY_AND_HARD
    assert of(estimator, scores, groups=groups)[2].max() > 0.01
    assert of(estimator, scores, [2], groups)[2].tolist() == [0.0] * 3


ESTIMATORS = sorted({e.value for e in AdvantageEstimator} - {"gae", "gdpo"} | {"grpo_guarded"})


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_group_removed_entirely_by_the_hook(estimator):
    scores, groups = EASY_AND_HARD
    finite = of(estimator, scores, [0, 1, 2, 3], groups).isfinite().all()
    assert finite == (estimator != "opo")  # which is refused with the hook
