"""The demo: three swarms (attack-free, poisoned, poisoned but guarded), using only bundled parts.

It carries out three runs of the swarm suite without keeping their folders.
"""

import os
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from rich.console import Console

from grpo_guard.cli.terminal import terminal
from grpo_guard.evals.progress import reporter
from grpo_guard.evals.report.console import print_results
from grpo_guard.evals.report.html import write_report
from grpo_guard.evals.report.summary import summarise
from grpo_guard.evals.results import Results, parse_results, today, versions, write_json
from grpo_guard.evals.swarm.config import QUICK, SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.suite import LINE_EVERY, play_all, rounds, row_reporter
from grpo_guard.evals.swarm.workload import Workload
from grpo_guard.guard.policy import Policy

MAX_WORKERS: Final = 2
ALPHA: Final = 1e-3
"""The verifiers' default alpha, recorded in the results."""
_POLICY: Final = Workload(policy="word_problems")
"""The first of the bundled policies; attacks on it succeed within the demo's few rounds."""
_RUNS: Final = (("none", "none"), ("text", "none"), ("text", "logprob_bound"))


def run_demo(
    out: Path,
    *,
    config: SwarmConfig | None = None,
    console: Console | None = None,
    command: str = "grpo-guard demo",
) -> Results:
    """Train the three swarms, print what happened, write ``results.json`` and ``report.html``.

    Args:
        out: Folder for the two files; created if missing. Nothing is written if a run fails.
        config: Settings of the attacked swarms; the attack-free swarm has no malicious node.
        command: The command that reproduces the run, for the record.
    """
    config, console = config or default_config(), console or terminal()
    out.mkdir(parents=True, exist_ok=True)  # fail now rather than after minutes of training
    # The attack-free run comes last: without poison it is the shortest.
    order = (*_RUNS[1:], _RUNS[0])
    specs = [Spec(attack, defence, config, _POLICY) for attack, defence in order]
    with (
        TemporaryDirectory(prefix="grpo-guard-demo-") as folder,
        reporter(console, every=LINE_EVERY, whole=rounds(specs)) as say,
    ):
        played = play_all(
            specs, Path(folder), command=command, on_row=row_reporter(say, run_name),
            every=config.iterations, workers=min(MAX_WORKERS, _cores()),
        )  # fmt: skip
    runs = {(run["attack"], run["defence"].partition(" ")[0]): run for run in played["runs"]}
    data: dict[str, Any] = {
        "config": _config(config, command),
        "versions": versions(),
        "date": today(),
        # The defence's plain name, because the config above already says what a rejection costs.
        "runs": [runs[of] | {"defence": of[1]} for of in _RUNS],
    }
    data["summary"] = summarise(parse_results(data))
    write_json(out / "results.json", data)
    report = write_report(out)
    results = parse_results(data)
    print_results(console, results, [out / "results.json", report])
    return results


def run_name(spec: Spec) -> str:
    """Return the name shown for a run while it trains."""
    if spec.attack == "none":
        return "attack-free"
    return "undefended" if spec.defence == "none" else "guarded"


def default_config(
    seed: int = 0,
    iterations: int | None = None,
    on_reject: Literal["zero", "drop"] = "drop",
    *,
    quick: bool = False,
) -> SwarmConfig:
    """Return the engine's default settings; ``quick`` runs are too short for the attack to succeed.

    By default, a rejected completion is dropped, although the guard's default policy would give it
    a reward of 0: without clipping, a negative advantage on tokens as improbable as those of poison
    ruins such a small policy.
    """
    config = replace(QUICK if quick else SwarmConfig(), seed=seed, on_reject=on_reject)
    return config if iterations is None else replace(config, iterations=iterations)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _config(config: SwarmConfig, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "task": "word_problems",
        "swarm": asdict(config),
        "alpha": ALPHA,
        "policy": asdict(Policy(on_reject=config.on_reject).chosen()),
        "sampling": asdict(config.sampling),
    }
