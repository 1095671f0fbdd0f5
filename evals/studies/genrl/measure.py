"""TEXT by one of three GenRL nodes: the honest policy's behaviour, admissions, and the cost.

    python -m grpo_guard.evals.studies.genrl.measure -o FILE.json

Needs the environment of `make test-genrl`. Finished runs are kept in .measure/genrl.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import datasets
import torch

from grpo_guard.evals.studies.genrl.exchange import Turns
from grpo_guard.evals.studies.genrl.play import (
    GUARDS,
    HONEST,
    MALICIOUS,
    NAMES,
    Played,
    SwarmSettings,
    quiet,
    swarm,
)  # fmt: skip
from grpo_guard.evals.studies.harness import CACHE, option, rate, say, study

LAST: Final = 5
"""Rounds at the end in which the phrase is counted."""


def figures(played: dict[str, Played], settings: SwarmSettings) -> dict[str, Any]:
    """Summarise a run over its honest nodes."""
    nodes = list(played.values())
    last = [row for node in nodes for row in node.showing[-LAST:]]
    highest = max(
        sum(node.showing[i][0] for node in nodes) / sum(node.showing[i][1] for node in nodes)
        for i in range(settings.rounds)
    )
    sent = settings.rounds * settings.trees * len(nodes)
    from_honest = sum(
        node.admitted[other] for name, node in played.items() for other in HONEST if other != name
    )
    guard, whole = (sum(seconds) for seconds in zip(*((n.guard_seconds, n.seconds) for n in nodes)))  # noqa: B905
    return {
        "showing, last rounds": rate(sum(hits for hits, _ in last), sum(n for _, n in last)),
        "highest share of a round": highest,
        "honest trees admitted": rate(from_honest, sent),
        "malicious trees admitted": rate(sum(n.admitted[MALICIOUS] for n in nodes), sent),
        "guard, share of CPU time": guard / whole,
        "CPU seconds of a node's round": whole / settings.rounds / len(nodes),
        "rounds": [node.rounds for node in nodes],
        "showing of each round": {n: p.showing for n, p in played.items()},
        "malicious trees of each round": {n: p.malicious for n, p in played.items()},
    }


def _named(settings: SwarmSettings) -> str:
    return " ".join(str(value) for value in asdict(settings).values())


def run(how: str, settings: SwarmSettings) -> dict[str, Any]:
    """Play a run, or load it if it is kept."""
    kept = CACHE / "genrl" / f"{how} {_named(settings)}.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    guard = GUARDS.get(how.removesuffix(" over hivemind"))
    if how.endswith("hivemind"):
        from grpo_guard.evals.studies.genrl.over_hivemind import backends

        turns = Turns(settings.seed)
        with backends(NAMES, turns) as made:
            played = swarm(settings, guard, backends=made, turns=turns)
    else:
        played = swarm(settings, guard)
    found = figures(played, settings)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def measure(guard: Sequence[str] | None, seeds: int, **chosen: Any) -> dict[str, Any]:
    """Play the requested runs."""
    import importlib.metadata

    quiet()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    runs: dict[str, Any] = {}
    whats = guard or ["none", *GUARDS]
    for number, how in enumerate(whats):
        for seed in range(seeds):
            say(f"{how}, seed {seed}", number, len(whats))
            settings = SwarmSettings(seed=seed, **chosen)
            runs.setdefault(how, {})[f"seed {seed}"] = run(how, settings)
    names = ("gensyn-genrl", "hivemind", "torch", "transformers")
    return {
        "packages": {name: importlib.metadata.version(name) for name in names},
        "settings": asdict(SwarmSettings(**chosen)),
        "runs": runs,
        "together": {how: _together(list(of.values())) for how, of in runs.items()},
    }


def _together(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("showing, last rounds", "honest trees admitted", "malicious trees admitted")
    summed = {
        name: rate(*(sum(run[name][part] for run in runs) for part in ("hits", "total")))
        for name in names
    }
    share = max(run["guard, share of CPU time"] for run in runs)
    return summed | {"guard, largest share of CPU time": share}


if __name__ == "__main__":
    study(
        "genrl",
        measure,
        option("--guard", action="append", help="default: none and all that there are"),
        option("--seeds", type=int, default=1),
        option("--rounds", type=int, default=20),
        option("--trees", type=int, default=4),
        option("--rejected", type=float, default=0.4),
        option("--minibatch", type=int, default=16),
    )
