"""The settings of a swarm run, and the reasons behind their values."""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from grpo_guard.core.arguments import require_choice
from grpo_guard.core.sampling import SamplingSpec

OnReject = Literal["zero", "drop", "no_gain"]
Setting = Literal["horizontal", "vertical"]
Models = Literal["homogeneous", "heterogeneous"]
AdvantageName = Literal["standard", "centred"]
EngineName = Literal["local", "ray"]
"""Where nodes compute: all in one process, or each as a Ray actor."""

_COUNTS: Final = (
    "iterations", "prompts", "group_size", "nodes", "max_new_tokens", "micro_batch",
)  # fmt: skip
_CHOICES: Final = {
    "setting": Setting, "models": Models, "on_reject": OnReject, "advantage": AdvantageName,
}  # fmt: skip


@dataclass(frozen=True)
class SwarmConfig:
    """The settings of a run: everything that affects the result except the attack and the defence.

    Attributes:
        seed: Determines problems, samples and poison; runs with equal seeds see the same problems.
        iterations: Rounds of generate, exchange, reward, update.
        prompts: Problems per round (B). Horizontal: the same for all nodes; vertical: B/m chosen by
            each node.
        group_size: Completions per problem (G; the paper: 12). Horizontal: G/m from each node;
            vertical: all from the node that chose the problem.
        nodes, malicious: The number of nodes (m), and how many of them attack.
        on_reject: "zero" gives a rejected completion the reward 0 (the paper's r_task * r_guard),
            "drop" leaves it out of its group's baseline and the loss, and "no_gain" does so only if
            it would have gained: see `Policy`. Poison is the data set's own solution plus the
            phrase, so "zero" punishes the rewarded format, and without a floor because nothing is
            clipped: one run learned like the others up to round 27, then fell to reward 0 by round
            33.
        temperature, top_k, max_new_tokens: The declared sampler (paper: top-k 50); a top_k of 0 is
            off.
        lr, betas: Adam's learning rate and betas. The paper's rate of 2e-5 suits 1.5B parameters; a
            million parameters need about 1e-3 to move within 80 updates. beta2 = 0.99 averages over
            the run; 0.95 forgets the scale in a few quiet rounds, and the next loud round then
            moves the policy too far.
        eps: Adam's epsilon, about the size of a gradient entry in a quiet round (norm 0.15 to 0.3
            over 0.9M entries). With the usual 1e-8, the noise from a group with one failure among
            eleven successes, whose unclipped advantage is -3.3, moves the policy by full steps:
            final rewards of attack-free and guarded runs were 0.07 apart, but at most 0.03 with
            this value.
        warmup: Iterations of linear warm-up: Adam's first steps are full-sized no matter what the
            gradient is, and the negative advantages in the first rounds are the largest.
        hold, final_lr: The rate is constant for this share of the run, then falls linearly to
            ``final_lr * lr``, so that the policy settles before the final reward is read.
        max_grad_norm: Maximum gradient norm. It clips the rare rounds (norm 1 to 2) where one
            improbable completion with a large negative advantage outweighs all others.
        micro_batch: Completions per forward pass of the update; affects only memory.
        share_prompts: Compute a group's prompt only once per micro-batch of the update: at most
            half the work if prompts are as long as completions. Changes only the last bits.
        setting: Who chooses the problems; see ``prompts``.
        models: "homogeneous": all nodes begin with the same weights and keep them unless they learn
            different things, so honest nodes are computed once. "heterogeneous":
            each honest node has its own model.
        kl_beta: Weight of KL(policy || initial weights) in the loss; 0 for none, as in the paper.
        leaves: Rounds after which the malicious nodes leave and send nothing more; None for never.
        guard_from: Rounds before the guard is switched on. By then, the policy might have learnt
            poison, which a reader on the live weights would then find likely.
        advantage: "standard" as in the paper's text, "centred" as in its code; see
            `grpo.advantages`.
        copies: Poison a group with a single text, sent in all of the attacker's slots, as in the
            paper's code. TEXT does this anyway.
        success_on: (held-out questions, completions of each) that success is counted on in every
            round; the questions are always the same, as in the paper's code. None for all honest
            completions of the round. Attacks with their own probes use those instead.
    """

    seed: int = 0
    iterations: int = 80
    prompts: int = 16
    group_size: int = 12
    nodes: int = 4
    malicious: int = 1
    on_reject: OnReject = "drop"
    temperature: float = 1.0
    top_k: int = 50
    max_new_tokens: int = 64
    lr: float = 1.5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 3e-4
    warmup: int = 5
    hold: float = 0.8
    final_lr: float = 0.05
    max_grad_norm: float = 0.7
    micro_batch: int = 64
    share_prompts: bool = False
    setting: Setting = "horizontal"
    models: Models = "homogeneous"
    kl_beta: float = 0.0
    leaves: int | None = None
    guard_from: int = 0
    advantage: AdvantageName = "standard"
    copies: bool = False
    success_on: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.top_k < 0:
            raise ValueError(f"top_k: expected an integer >= 0 (0 = off), got {self.top_k}")
        for name, known in _CHOICES.items():
            require_choice(name, getattr(self, name), get_args(known))
        for name, least, end, of in (
            ("malicious", 0, self.nodes, "nodes"),
            ("leaves", 1, self.iterations, "rounds"),
            ("guard_from", 0, self.iterations, "rounds"),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < end:
                raise ValueError(
                    f"{name}: expected {least} to {end - 1} of {end} {of}, got {value}"
                )
        shared = "group_size" if self.setting == "horizontal" else "prompts"
        if getattr(self, shared) % self.nodes:
            raise ValueError(
                f"{shared}: expected a multiple of nodes ({self.nodes}) in the {self.setting} "
                f"setting, got {getattr(self, shared)}"
            )
        if self.group_size < 2:
            raise ValueError(f"group_size: expected at least 2, got {self.group_size}")
        for name in ("temperature", "lr", "kl_beta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: expected a finite number >= 0, got {value}")
        if self.success_on is not None and min(self.success_on) < 1:
            raise ValueError(f"success_on: expected two counts above 0, got {self.success_on}")

    def lr_at(self, iteration: int) -> float:
        """Return an iteration's learning rate: linear warm-up, hold, linear decay."""
        warm = min(1.0, (iteration + 1) / max(1, self.warmup))
        start = self.hold * self.iterations
        past = max(0.0, (iteration - start) / max(1.0, self.iterations - start))
        return self.lr * warm * (1.0 - (1.0 - self.final_lr) * past)

    @property
    def per_node(self) -> int:
        """Completions that one node contributes to each of its groups."""
        return self.group_size if self.setting == "vertical" else self.group_size // self.nodes

    @property
    def sampling(self) -> SamplingSpec:
        """The sampler that all nodes declare and that honest nodes use."""
        return SamplingSpec(
            engine="transformers", temperature=self.temperature, top_k=self.top_k, top_p=1.0,
            max_new_tokens=self.max_new_tokens,
        )  # fmt: skip

    @property
    def honest_nodes(self) -> int:
        """Number of nodes that sample what they submit."""
        return self.nodes - self.malicious

    @property
    def own_prompts(self) -> int:
        """Problems that one node chooses in the vertical setting."""
        return self.prompts // self.nodes

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes, the malicious ones last."""
        return tuple(f"node-{number}" for number in range(self.nodes))


QUICK = SwarmConfig(iterations=30, prompts=8)
"""Settings for a smoke test, in which the attack starts to work but does not finish."""
