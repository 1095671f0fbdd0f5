"""How a served guard answers under load, under attack and during faults.

    python -m grpo_guard.evals.studies.serve_load [--part speed,sustained,log_probs,faults,attacks]

Each part starts its own servers on 127.0.0.1; load comes from another process. Ratios compare CPU
time within a run; times are for an otherwise idle machine.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.evals.studies.serve_load.attacks import CASES, under
from grpo_guard.evals.studies.serve_load.faults import full_queue, told_to_stop, workers_killed
from grpo_guard.evals.studies.serve_load.speed import against_echo, log_probs, sustained

PARTS = ("speed", "sustained", "log_probs", "faults", "attacks")


def measure(
    part: str, only: str, seconds: float, requests: int, times: int, workers: int
) -> dict[str, Any]:
    """Figures of the chosen parts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # connections of the attacks
    chosen = part.split(",") if part else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        raise ValueError(f"--part: expected {', '.join(PARTS)}, got {', '.join(unknown)}")
    found: dict[str, Any] = {}
    if "speed" in chosen:
        found["against a bare echo, CPU time"] = against_echo(seconds)
    if "sustained" in chosen:
        name = f"different_weights, 64 clients, {workers} workers"
        found[name] = sustained(requests, workers)
        say("sustained", 1, 1)
    if "log_probs" in chosen:
        found["log-probs of the bundled policy"] = log_probs(seconds)
        say("log_probs", 1, 1)
    if "faults" in chosen:
        found["faults"] = {
            "SIGTERM under load": told_to_stop(times),
            "a worker killed": workers_killed(times),
            "a full queue": full_queue(256),
        }
        say("faults", 1, 1)
    if "attacks" in chosen:
        cases = {name: case for name, case in CASES.items() if only in name}
        found["attacks"] = {}
        for number, (name, (attack, options)) in enumerate(cases.items(), 1):
            found["attacks"][name] = under(attack, options)
            say(name, number, len(cases))
    return found


if __name__ == "__main__":
    study(
        "serve-load",
        measure,
        option("--part", default="", help=f"of {', '.join(PARTS)}; all by default"),
        option("--only", default="", help="attacks whose name contains this text"),
        option("--seconds", type=float, default=20.0, help="of load, for each figure of speed"),
        option("--requests", type=int, default=100_000, help="of the sustained load"),
        option("--times", type=int, default=10, help="that each fault is made"),
        option("--workers", type=int, default=1, help="of the sustained load"),
        out=Path("docs/results/serve-load.json"),
    )
