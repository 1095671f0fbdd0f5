"""Run trainers through the cases, record the results, and write the page.

    python -m tests.conformance.record              # write the page from the records
    python -m tests.conformance.record trl verl     # rerun these trainers, then write it

Each trainer runs in the environment of its own tests (`make test-across` makes them all).
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conformance.conformance_cases import CASES, SCALES, shown
from tests.helpers.subprocesses import ROOT, environment

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", ROOT / "docs" / "conformance.md"
PYTHONS = {
    "trl": ".venv",
    "verl": ".venv-verl",
    "openrlhf": ".venv-openrlhf",
    "genrl": ".venv-genrl",
    "atropos": ".venv-verifiers",
    "prime_rl": ".venv-verifiers",
}
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # Ray's ports are open to the network
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
TABLE = ("| trainer | alone | guarded |", "|---|---|---|")
HEAD = """# What each trainer does, alone and guarded

Each case goes through each trainer's own code twice, without and with the guard. Advantages are not
divided by the group's deviation, except in Atropos and GenRL, which always divide. A dash is a row
that trains nothing. A trainer without a row cannot have the case. slime, AReaL, NeMo-RL, ms-swift
and the Tinker cookbook are not driven here.

Recorded with {releases}, by `python -m tests.conformance.record`; for prime-rl, put its checkout on
the path.
"""


def python_of(trainer: str) -> Path:
    """Return the interpreter of a trainer's environment, which need not exist."""
    return ROOT / PYTHONS[trainer] / "bin" / "python"


def driven(trainer: str) -> dict[str, Any]:
    """Run the cases and return the trainer's release and, per case, both cells.

    Raises:
        RuntimeError: the driver failed; the message has the end of its output.
    """
    done = subprocess.run(
        [python_of(trainer), HERE / f"drive_{trainer}.py"], capture_output=True, text=True,
        timeout=900, env=environment(**RAY, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{trainer}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"release": found["release"], "cases": rounded(found["cases"])}


def rounded(value: Any) -> Any:
    """Round to four digits: the last ones differ between machines."""
    if isinstance(value, float):
        return round(value, 4) + 0.0
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def recorded() -> dict[str, dict[str, Any]]:
    """Load the last recorded result of each trainer."""
    files = {name: RESULTS / f"{name}.json" for name in SCALES}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def page() -> str:
    """Render the page from the records."""
    found = recorded()
    releases = ", ".join(said["release"] for said in found.values())
    lines = [HEAD.format(releases=releases)]
    for name, case in CASES.items():
        lines += [
            f"## {case.title}",
            "",
            case.what,
            "",
            *TABLE,
        ]
        rows: dict[tuple[str, str], list[str]] = {}
        for said in found.values():
            cells, title = said["cases"][name], said["release"].split()[0]
            if "absent" not in cells["guarded"]:
                row = in_words(cells["alone"]), in_words(cells["guarded"])
                rows.setdefault(row, []).append(title)
        lines += [f"| {', '.join(who)} | {alone} | {ours} |" for (alone, ours), who in rows.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def in_words(cell: dict[str, Any]) -> str:
    """Format a cell for the page."""
    parts = []
    if "advantages" in cell:
        parts.append(shown(cell["advantages"]))
    if cell.get("error") == "none":
        parts.append("no error")
    elif "error" in cell:
        parts.append(f"`{cell['error'].partition(':')[0]}`")
    if "verdicts" in cell:
        parts.append("verdicts " + ", ".join(" ".join(v) for v in cell["verdicts"]))
    if "loss" in cell:
        if cell["loss"] != "finite":
            parts.append(f"the loss is {cell['loss']}")
        parts.append("the weights stay" if cell["moved"] == 0 else "the weights move")
    if cell.get("reject_rate") is not None:
        parts.append(f"a reject rate of {cell['reject_rate']:g} is logged")
    if "note" in cell:
        parts.append(cell["note"])
    return "; ".join(parts)


def main(trainers: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    for trainer in trainers:
        said = json.dumps(driven(trainer), indent=1) + "\n"
        (RESULTS / f"{trainer}.json").write_text(said)
    PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
