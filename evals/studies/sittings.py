"""A plan of swarms that takes several sessions: the results so far, as one JSON file.

``python -m grpo_guard.evals.studies.sittings DIR -o FILE.json --command "..."``

DIR is that of ``eval swarm -o DIR``, whose own results.json holds only finished runs. The rounds of
an unfinished run are under ``unfinished``, with the settings that it was begun with, so that its
last rounds are not mistaken for its end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from grpo_guard.evals.results import versions, write_json
from grpo_guard.evals.swarm.training import EVENTS


def main() -> None:
    """Collect and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--command", required=True, help="the command that continues the plan")
    given = parser.parse_args()
    found = so_far(given.folder)
    config = {"command": given.command}
    write_json(given.out, {"config": config, "versions": versions()} | found)


def so_far(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """``runs`` as in results.json, and ``unfinished`` ones as their settings and rounds."""
    finished, unfinished = [], []
    for log in sorted(folder.glob(f"runs/*/{EVENTS}")):
        run = log.with_name("run.json")
        if run.is_file():
            finished.append(json.loads(run.read_text(encoding="utf-8"))["run"])
        else:
            unfinished.append(_begun(log))
    return {"runs": finished, "unfinished": unfinished}


def _begun(log: Path) -> dict[str, Any]:
    """Return a run's name, settings and rounds; of a round played twice, the later one."""
    identity: dict[str, Any] = {}
    rounds: dict[int, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        identity = event.get("identity", identity)
        if event["event"] == "round":
            kept = {name: value for name, value in event.items() if name not in ("event", "time")}
            rounds[event["iteration"]] = kept
    return {"run": log.parent.name, "identity": identity, "rounds": [*rounds.values()]}


if __name__ == "__main__":
    main()
