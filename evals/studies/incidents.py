"""How the presets respond to the four attacks carried out on a public run.

    python -m grpo_guard.evals.studies.incidents [--rounds N] [-o FILE]

Runs small swarms, one for each preset and attack. An interrupted plan can be resumed.
"""

from pathlib import Path
from typing import Any, Final

from grpo_guard.evals.defences.own import GuardFile
from grpo_guard.evals.results import write_text
from grpo_guard.evals.studies.harness import CACHE, option, say, study
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.plan import Matrix, plan, require_playable
from grpo_guard.evals.swarm.suite import play_all, row_reporter
from grpo_guard.evals.swarm.workload import Workload

ATTACKS: Final = ("token_split", "cap_forcing", "eos_padding", "reward_selection")
DEFENCES: Final = ("none", "same_weights", "homogeneous", "heterogeneous")
FAILURES_ONLY: Final = "preset:failures_only"
JUDGED: Final = "preset: judged\nbackend: shipped\n"
"""Guard file with the shipped judge, which knows only answers like those of this policy."""


def measure(rounds: int, folder: Path) -> dict[str, Any]:
    """Carry out all runs and return the content of results.json."""
    judged = folder / "judged.yaml"
    write_text(judged, JUDGED)
    guards = [GuardFile.named(str(judged)), GuardFile.named(FAILURES_ONLY)]
    specs = plan(
        Matrix(ATTACKS, DEFENCES, seeds=[0], guards=guards, max_new_tokens=64),
        SwarmConfig(iterations=rounds, prompts=8),
        Workload(policy="word_problems"),
    )
    require_playable(specs)
    command = f"python -m grpo_guard.evals.studies.incidents --rounds {rounds}"

    def report(what: str, done: int, wanted: int, figures: str = "") -> None:
        if done == wanted:
            say(f"{what}, {figures}", done, wanted)

    return play_all(specs, folder, command=command, on_row=row_reporter(report))


if __name__ == "__main__":
    study(
        "incidents",
        measure,
        option("--rounds", type=int, default=8, help="of each run"),
        option("--folder", type=Path, default=CACHE / "incidents", help="where runs are kept"),
        out=Path("docs/results/swarm-incidents.json"),
    )
