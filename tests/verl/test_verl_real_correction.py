"""The guard with verl's rollout correction: verl's own code rejects, weighs and counts."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_policy_loss_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.config import ActorConfig

import grpo_guard.adapters.verl.plugin  # noqa: F401 (registers the estimator)
from grpo_guard.adapters.verl.settings import Settings
from grpo_guard.guard.framework import FrameworkError
from tests.verl.tiny_verl import GUARDED, HOOK, guarded_by

TOKENS = 4
SEQUENCE = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
TOKEN = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}


def batch(scores, off=(), left_out=(), token=None):
    """One group; rows in ``off`` were sampled by another policy, at one token or entirely."""
    n = len(scores)
    old, rollout = torch.full((n, TOKENS), -1.0), torch.full((n, TOKENS), -1.0)
    for row in off:
        rollout[row, slice(None) if token is None else token] = -3.0
    rewards, mask = torch.zeros(n, TOKENS), torch.ones(n, TOKENS)
    rewards[:, -1] = torch.tensor(scores)
    mask[list(left_out)] = 0
    return DataProto.from_dict(
        tensors={
            "old_log_probs": old, "rollout_log_probs": rollout, "response_mask": mask,
            "token_level_rewards": rewards,
        },
        non_tensors={"uid": np.array(["a"] * n, dtype=object)},
    )  # fmt: skip


def corrected(data, estimator, **correction):
    """Advantages [n] and verl's metrics, as its trainers compute them in decoupled mode."""
    chosen = OmegaConf.create({"rollout_is": None, **correction})
    data, figures = compute_rollout_correction_and_add_to_batch(data, chosen)
    name = AdvantageEstimator.GRPO if estimator == "grpo" else estimator
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": False, "rollout_correction": chosen})
    done = compute_advantage(data, name, norm_adv_by_std_in_grpo=False, config=config)
    return done.batch["advantages"][:, 0].tolist(), figures


def test_grpo_guarded_removes_rejected_sequences_from_the_baseline():
    scores = [1.0, 0.0, 5.0, 1.0]
    plain, _ = corrected(batch(scores, off=[2]), "grpo", **SEQUENCE)
    assert plain == pytest.approx([-0.75, -1.75, 0.0, -0.75])
    guarded, figures = corrected(batch(scores, off=[2]), "grpo_guarded", **SEQUENCE)
    assert guarded == pytest.approx([1 / 3, -2 / 3, 0.0, 1 / 3])
    assert figures["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.25


def test_veto_and_rejected_sequence_leave_the_same_baseline():
    scores = [1.0, 0.0, 5.0, 1.0, 9.0]
    found, figures = corrected(batch(scores, off=[4], left_out=[2]), "grpo_guarded", **SEQUENCE)
    assert found == pytest.approx([1 / 3, -2 / 3, 0.0, 1 / 3, 0.0])
    # Rows that the guard left out count in verl's denominators and in no numerator.
    assert figures["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(1 / 5)
    assert figures["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 4)


def test_rejected_final_token_pays_nothing_under_grpo_guarded():
    scores = [1.0, 0.0]
    plain, _ = corrected(batch(scores, off=[0], token=-1), "grpo", **TOKEN)
    assert plain == pytest.approx([0.5, -0.5])
    guarded, _ = corrected(batch(scores, off=[0], token=-1), "grpo_guarded", **TOKEN)
    assert guarded == [0.0, 0.0]
    four, figures = corrected(batch([1.0, 0.0, 5.0, 1.0], [2], token=-1), "grpo_guarded", **TOKEN)
    assert four == pytest.approx([1 / 3, -2 / 3, 0.0, 1 / 3])
    assert figures["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 16)


def test_other_rejected_token_masks_only_itself():
    found, _ = corrected(batch([1.0, 0.0], off=[0], token=1), "grpo_guarded", **TOKEN)
    assert found == pytest.approx([0.5, -0.5])


def test_weights_without_rejection_do_not_change_the_baseline():
    weights = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
    data = batch([1.0, 0.0, 5.0, 1.0], off=[3], left_out=[2])
    found, figures = corrected(data, "grpo_guarded", **weights)
    assert found == pytest.approx([1 / 3, -2 / 3, 0.0, 1 / 3])
    assert data.batch["rollout_is_weights"][2].tolist() == [0.0] * TOKENS
    assert np.isfinite(list(figures.values())).all()


def test_verl_raises_if_nothing_of_a_batch_remains():
    """As docs/trainers.md warns: with the rollout's log-probs, such a batch ends the run."""
    with pytest.raises(ValueError, match="at least one valid token"):
        corrected(batch([1.0, 0.0], left_out=[0, 1]), "grpo_guarded")


def bypassed(mask, **correction):
    """verl's loss of one micro-batch in bypass mode."""
    chosen = {"rollout_is": None, "bypass_mode": True, "loss_type": "ppo_clip", **correction}
    config = ActorConfig(
        strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1,
        policy_loss={"loss_mode": "bypass_mode", "rollout_correction": chosen},
    )  # fmt: skip
    shape = mask.shape
    zeros = torch.zeros(shape)
    loss, figures = get_policy_loss_fn("bypass_mode")(
        old_log_prob=zeros - 1, log_prob=zeros - 1, advantages=zeros, response_mask=mask,
        config=config,
    )  # fmt: skip
    return loss.item(), figures


def test_hook_empties_no_mask_in_bypass_mode():
    with pytest.raises(ValueError, match="at least one valid token"):
        bypassed(torch.zeros(1, TOKENS), **SEQUENCE)
    loss, figures = bypassed(torch.ones(1, TOKENS), **SEQUENCE)
    assert loss == 0.0
    assert figures["rollout_corr/rollout_rs_masked_fraction"] == 0.0


BYPASS = "algorithm.rollout_correction.bypass_mode=True"


def settings(configuration, folder, *overrides, **guard):
    return Settings.of(configuration(*GUARDED, HOOK, *guarded_by(folder, **guard), *overrides))


def test_grpo_guarded_is_refused_in_bypass_mode(configuration, tmp_path):
    named = "algorithm.adv_estimator=grpo_guarded"
    with pytest.raises(FrameworkError, match=r"bypass_mode=False, or choose adv_estimator=grpo"):
        settings(configuration, tmp_path, named, BYPASS).policy()
    assert settings(configuration, tmp_path, named).policy().on_reject == "drop"
    watch = "policy: {on_reject: keep}\nverifier: {type: arithmetic}\n"
    assert settings(configuration, tmp_path, named, BYPASS, text=watch).policy().watches


def test_left_out_rows_get_the_group_mean_in_bypass_mode(configuration, tmp_path):
    assert settings(configuration, tmp_path, BYPASS).policy().on_reject == "drop"
    named = "algorithm.adv_estimator=reinforce_plus_plus"
    assert settings(configuration, tmp_path, named).policy().on_reject == "drop"
    with pytest.raises(FrameworkError, match="the agent-loop hook can empty no mask"):
        settings(configuration, tmp_path, named, BYPASS).policy()
    zero = "policy: {on_reject: zero, on_abstain: zero}\nverifier: {type: arithmetic}\n"
    assert settings(configuration, tmp_path, named, BYPASS, text=zero).policy().on_reject == "zero"


def figures_of(rows, left_out=()):
    data = batch([0.0] * rows, off=range(rows), left_out=left_out)
    data.batch["rollout_log_probs"] = torch.full((rows, TOKENS), -1.5)
    _, found = corrected(data, "grpo_guarded", rollout_is="token", rollout_is_threshold=2.0)
    return {name.removeprefix("rollout_corr/"): value for name, value in found.items()}


def test_verl_metrics_that_reflect_left_out_rows():
    """As the table in docs/trainers.md says: token metrics reflect it, sequence metrics count 0."""
    all_stay, one_less = figures_of(4), figures_of(4, left_out=[2])
    assert all_stay["kl"] != 0
    of_tokens = ("kl", "chi2_token", "rollout_is_eff_sample_size", "rollout_is_mean")
    for name in of_tokens:
        assert one_less[name] == pytest.approx(all_stay[name]), name
    for name in ("log_ppl_abs_diff", "rollout_is_seq_mean"):
        assert one_less[name] == pytest.approx(3 / 4 * all_stay[name]), name
