"""The cost of scaling rewards by length in a swarm without an attacker.

    python -m grpo_guard.evals.studies.length_cost [--policy FOLDER] [-o FILE]

Four nodes train the bundled policy, or the one in FOLDER. For correct answers, the study measures
the mean factor, how many are scaled and how many lose their whole reward: under the unchanged
preset, with ``length=True`` (with and without node names), and with several tolerances.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard import presets
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.harness import RESULTS, option, say, study

Round: TypeAlias = list[tuple[Completion, bool]]
"""The completions of a round, each paired with whether its answer is correct."""
TOLERANCES: Final = (0.5, 1.0, 3.0)


class _Cost:
    """The factors by which one guard scales correct answers."""

    def __init__(self, **options: Any) -> None:
        self.guard = presets.different_weights(**options)
        self.factors: list[float] = []

    def add(self, batch: Round) -> None:
        rows = [completion for completion, _ in batch]
        scaling = self.guard.policy.chosen().on_long == "scale" and self.guard.length_scaling
        factors = scaling.factors(rows) if scaling else [1.0] * len(rows)
        self.factors += [f for f, (_, right) in zip(factors, batch, strict=True) if right]

    def figures(self) -> dict[str, Any]:
        found = self.factors
        return {
            "right": len(found),
            "mean_factor": round(sum(found) / max(1, len(found)), 4),
            "scaled": sum(f < 1 for f in found),
            "dropped": sum(f <= 0 for f in found),
        }


def cost(rounds: Iterable[Round]) -> dict[str, Any]:
    """Compute each guard's figures over the rounds, which are taken in order."""
    guards = {"as it comes": _Cost(), "length=True": _Cost(length=True)}
    for tolerance in TOLERANCES:
        scaling = LengthScaling(tolerance=tolerance)
        guards[f"tolerance={tolerance:g}"] = _Cost(length_scaling=scaling)
    nameless = _Cost(length=True)
    for batch in rounds:
        for guard in guards.values():
            guard.add(batch)
        nameless.add([(replace(c, node=None), right) for c, right in batch])
    named = {name: guard.figures() for name, guard in guards.items()}
    return named | {"length=True, without names": nameless.figures()}


def played(policy: Path | None, rounds: int, prompts: int) -> Iterable[Round]:
    """Run a swarm without attacker or guard, and yield its rounds."""
    from grpo_guard.evals.swarm.config import SwarmConfig
    from grpo_guard.evals.swarm.engine import Swarm
    from grpo_guard.evals.swarm.workload import Workload

    config = SwarmConfig(iterations=rounds, prompts=prompts, malicious=0, max_new_tokens=96)
    config = replace(config, lr=1e-5) if policy else config
    peers, task = Workload(policy=None if policy is None else str(policy)).load(config)
    swarm = Swarm(peers, task, config)
    for number in range(rounds):
        submitted, asked = swarm.exchange(number)
        yield [(one.completion, one.reward > 0) for one in submitted]
        for member in swarm.members:
            member.learn(number, asked, submitted, False)
        say("rounds", number + 1, rounds)


def measure(policy: Path | None, rounds: int, prompts: int) -> dict[str, Any]:
    """Compute all figures."""
    return {"swarm": cost(played(policy, rounds, prompts))}


if __name__ == "__main__":
    study(
        "length-cost",
        measure,
        option("--policy", type=Path, metavar="FOLDER", help="in place of the bundled policy"),
        option("--rounds", type=int, default=8, help="of training"),
        option("--prompts", type=int, default=8, help="prompts a round, answered by all nodes"),
        out=RESULTS / "length-cost.json",
    )
