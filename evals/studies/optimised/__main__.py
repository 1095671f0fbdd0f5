"""What verifiers reject of an attacker who queries them first: the best of N rewritings.

    python -m grpo_guard.evals.studies.optimised --data FOLDER

FOLDER holds GSM8K's ``train.jsonl`` and ``model_solutions.jsonl``. A row is (verifier | attack):
the rejected share by budget, alone and as the work of one node of four, together with the share of
honest work that the same verifier rejects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_guard.evals.studies.harness import RESULTS, option, study
from grpo_guard.evals.studies.optimised import content, judged
from grpo_guard.evals.studies.optimised.campaigns import recurrence
from grpo_guard.evals.studies.optimised.lengths import length
from grpo_guard.evals.studies.optimised.likelihood import likelihood

KINDS = ("content", "length", "likelihood", "recurrence", "judge")


def measure(
    data: Path,
    only: list[str],
    count: int,
    samples: int,
    honest: int,
    swarms: int,
    judge: int,
    deep: int,
) -> dict[str, Any]:
    """Compute all rows of the requested kinds."""
    wanted = only or KINDS
    rows: dict[str, Any] = {}
    if "content" in wanted:
        rows |= {case.name: content.measured(case, count) for case in content.cases(data, count)}
    if "length" in wanted:
        rows["length | padded"] = length(2 * samples, samples)
    if "likelihood" in wanted:
        rows |= likelihood(samples, honest, deep)
    if "recurrence" in wanted:
        rows |= recurrence(data, swarms)
    if "judge" in wanted:
        rows |= {case.name: content.measured(case, deep) for case in judged.cases(judge)}
    return {"rows": rows}


if __name__ == "__main__":
    study(
        "optimised-attackers",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--only", action="append", choices=KINDS, default=[], help="may be repeated"),
        option("--count", type=int, default=40, help="poisoned texts of content verifiers"),
        option("--samples", type=int, default=6, help="poisoned samples of a policy"),
        option("--honest", type=int, default=300, help="honest samples of a policy"),
        option("--swarms", type=int, default=1, help="swarms with a campaign against recurrence"),
        option("--judge", type=int, default=10, help="poisoned texts of the judge"),
        option(
            "--deep",
            type=int,
            default=1,
            help="of samples and of the judge's texts, those asked 1,000 times",
        ),
        out=RESULTS / "optimised-attackers.json",
    )
