"""Settings of a swarm run, and why they are what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnReject = Literal["zero", "drop"]


@dataclass(frozen=True)
class SwarmConfig:
    """One horizontal, homogeneous run. Everything that decides the result is a field.

    Attributes:
        seed: Decides problems, samples and poison; runs with equal seeds see the same problems.
        iterations: Rounds of generate, exchange, reward, update.
        prompts: B, problems per round, the same for all nodes.
        group_size: G, completions per problem over all nodes (the paper: 12).
        nodes, malicious: m and how many of them attack; each contributes G/m per problem.
        on_reject: "zero" gives a rejected completion the reward 0 (the paper's r_task * r_guard),
            "drop" leaves it out of its group's baseline and of the loss.
        temperature, top_k, max_new_tokens: The declared sampler (the paper: top-k 50).
        lr, betas, eps: Adam's. The paper's 2e-5 suits 1.5B parameters; one million need 1e-3 to
            move within 70 updates. beta2 = 0.95 because the gradient's scale falls by a factor of
            three to five within 20 rounds, and a longer memory would freeze the later rounds.
        warmup: Iterations of linear warm-up: Adam's first steps are full-sized whatever the
            gradient, and the negative advantages of the first rounds are the largest.
        hold, final_lr: The rate is constant for this share of the run, then falls linearly to
            ``final_lr * lr``, so that the final rewards of two runs can be compared: at the full
            rate they wander by 0.1 from round to round.
        max_grad_norm: Clips single rounds whose negative advantages explode; most lie below it.
        micro_batch: Completions per forward pass of the update; bounds memory only.
    """

    seed: int = 0
    iterations: int = 70
    prompts: int = 16
    group_size: int = 12
    nodes: int = 4
    malicious: int = 1
    on_reject: OnReject = "drop"
    temperature: float = 1.0
    top_k: int = 50
    max_new_tokens: int = 64
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    warmup: int = 5
    hold: float = 0.6
    final_lr: float = 0.1
    max_grad_norm: float = 1.0
    micro_batch: int = 64

    def __post_init__(self) -> None:
        """Refuse settings that cannot be a swarm."""
        if not 0 <= self.malicious < self.nodes:
            raise ValueError(
                f"malicious: expected 0 to {self.nodes - 1} of {self.nodes} nodes, "
                f"got {self.malicious}"
            )
        if self.group_size % self.nodes:
            raise ValueError(
                f"group_size: expected a multiple of nodes ({self.nodes}), got {self.group_size}"
            )
        for name in ("iterations", "prompts", "top_k", "max_new_tokens", "micro_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    def lr_at(self, iteration: int) -> float:
        """Return the learning rate of one iteration: linear warm-up, hold, linear decay."""
        warm = min(1.0, (iteration + 1) / max(1, self.warmup))
        start = self.hold * self.iterations
        past = max(0.0, (iteration - start) / max(1.0, self.iterations - start))
        return self.lr * warm * (1.0 - (1.0 - self.final_lr) * past)

    @property
    def per_node(self) -> int:
        """Completions that one node contributes to one group."""
        return self.group_size // self.nodes

    @property
    def honest_nodes(self) -> int:
        """Nodes that sample what they submit."""
        return self.nodes - self.malicious


QUICK = SwarmConfig(iterations=30, prompts=8)
"""A smoke test: the attack is on its way, not yet there."""

STANDARD = SwarmConfig()
"""What the demo runs."""

PAPER = SwarmConfig(iterations=100, prompts=32)
"""The paper's batch and length of run."""
