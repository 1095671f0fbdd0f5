"""Small reimplementations of what other trainers publish, each with the file and version it
mirrors.

They contain the arithmetic and the signatures on which the adapters rely. If the real package can
be imported, the tests use that instead.
"""

import asyncio
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

# --- Tinker cookbook 0.6.1: rl/types.py, rl/rollouts.py, rl/data_processing.py


@dataclass
class Transition:
    ob: object
    ac: object
    reward: float
    episode_done: bool
    metrics: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    transitions: list
    final_ob: object = None
    stop_reason: str | None = None


class EnvGroupBuilder:
    async def compute_group_rewards(self, trajectory_group, env_group):
        return [(0.0, {}) for _ in trajectory_group]


def tinker_advantages(builder, trajectories, envs):
    """`do_group_rollout` and `compute_advantages`: (advantage, trains?) of each trajectory."""
    answers = asyncio.run(builder.compute_group_rewards(trajectories, envs))
    totals = torch.tensor(
        [
            sum(turn.reward for turn in trajectory.transitions) + final
            for trajectory, (final, _) in zip(trajectories, answers, strict=True)
        ]
    )
    trains = [
        any(turn.metrics.get("parse_error_masked", 0.0) < 1.0 for turn in trajectory.transitions)
        for trajectory in trajectories
    ]
    return (totals - totals.mean()).tolist(), trains, [metrics for _, metrics in answers]


def action(ids, cut=False):
    return SimpleNamespace(
        tokens=list(ids), maybe_logprobs=[-0.5] * len(ids), stop_reason="length" if cut else "stop"
    )


def observation(*ids):
    return SimpleNamespace(chunks=[SimpleNamespace(tokens=list(ids))])


# --- NeMo-RL at 7ea279abfbeb698b092856d0dab61e7cf39bc909: algorithms/advantage_estimator.py,
# `GRPOAdvantageEstimator`, and `calculate_baseline_and_std_per_prompt` of algorithms/utils.py


class GRPOAdvantageEstimator:
    def __init__(self, leave_one_out=True, normalize=False):
        self.leave_one_out, self.normalize = leave_one_out, normalize

    def compute_advantage(self, prompt_ids, rewards, mask, **kwargs):
        baseline, std = torch.zeros_like(rewards), torch.zeros_like(rewards)
        for prompt in torch.unique(prompt_ids, dim=0):
            rows = (prompt_ids == prompt).all(1).nonzero().flatten()
            others = torch.ones(len(rows), len(rows)) - torch.eye(len(rows)) * self.leave_one_out
            count = torch.tensor(float(len(rows) - int(self.leave_one_out)))
            if len(rows) <= 1:
                baseline[rows] = rewards[rows]
                continue
            mean = others @ rewards[rows] / count
            square = others @ rewards[rows].square() / count
            baseline[rows] = mean
            std[rows] = ((square - mean.square()) * (count / (count - 1))).sqrt().nan_to_num(0)
        advantages = (rewards - baseline).unsqueeze(-1)
        if self.normalize:
            some = std > 0
            advantages[some] = advantages[some] / (std.unsqueeze(-1)[some] + 1e-6)
        return advantages.expand(mask.shape)


# --- AReaL 1.0.4: utils/data.py, `Normalization` by group and `concat_padded_tensors`


def concat_padded_tensors(rows):
    longest = max(row["input_ids"].shape[1] for row in rows)
    made = {}
    for name in rows[0]:
        parts = [row[name] for row in rows]
        if parts[0].ndim == 2:
            parts = [torch.nn.functional.pad(p, (0, longest - p.shape[1])) for p in parts]
        made[name] = torch.cat(parts)
    return made


def areal_advantages(group, size, by_std=False):
    """Rewards minus the mean of each ``size`` rows, divided by their deviation on request."""
    rewards = group["rewards"].double()
    found = []
    for start in range(0, len(rewards) // size * size, size):
        part = rewards[start : start + size]
        centred = part - part.mean()
        found.append(centred / (part.std(unbiased=False) + 1e-5) if by_std else centred)
    return torch.cat(found).tolist()


def areal_modules(monkeypatch):
    """The module from which the adapter imports."""
    module = types.ModuleType("areal.utils.data")
    module.concat_padded_tensors = concat_padded_tensors
    for name in ("areal", "areal.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "areal.utils.data", module)


def areal_episode(prompt, said, reward):
    """Tensors as `RLVRWorkflow.arun_episode` builds them."""
    ids = [*prompt, *said]
    n, m = len(prompt), len(said)
    made = {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "loss_mask": torch.tensor([0] * n + [1] * m, dtype=torch.int32),
        "logprobs": torch.tensor([0.0] * n + [-0.5] * m),
        "versions": torch.tensor([-1] * n + [0] * m, dtype=torch.int32),
        "attention_mask": torch.ones(n + m, dtype=torch.bool),
        "rewards": torch.tensor(reward, dtype=torch.float32),
    }
    return {name: value.unsqueeze(0) for name, value in made.items()}
