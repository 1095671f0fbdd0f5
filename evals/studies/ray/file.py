"""Memory and time of ``grpo-guard verify --engine ray`` over a file of any size.

``python -m grpo_guard.evals.studies.ray.file --rows 1000000 -o docs/results/ray-file.json``

The rows are short (a sum and an answer), in groups of eight of sixteen nodes, and the guard is
`presets.different_weights` with its memory in a folder. The driver's resident memory is sampled
from the kernel, shared pages of Ray's object store included; its workers are other processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from grpo_guard.evals.studies.harness import option, say, study

GROUP: Final = 8
NODES: Final = 16
FIELDS: Final = ("VmRSS", "RssAnon", "RssShmem")


def write(path: Path, rows: int) -> None:
    """Write a file with this many rows."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(rows):
            text = f"There are {i} and one more, so {i} + 1 = {i + 1}.\n#### {i + 1}"
            said = {
                "prompt": f"{i // GROUP}. How many are {i // GROUP} and one more?",
                "text": text,
                "node": f"n{i % NODES}",
                "reference": str(i + 1),
                "round": i // 8192,
            }
            file.write(json.dumps(said) + "\n")


def resident(pid: int) -> dict[str, int]:
    """Return the MiB that a process holds, by the kernel's names; empty once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(FIELDS))
    return {name: int(value.split()[0]) // 1024 for name, value in pairs}


def measure(rows: int, workers: int, engine: str) -> dict[str, Any]:
    """The driver's largest resident memory, and rows a second."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "in.jsonl", rows)
        guard = f"preset: different_weights\nstate: {folder / 'state'}\n"
        (folder / "guard.yaml").write_text(guard, encoding="utf-8")
        on_ray = ["--engine", "ray", "--workers", str(workers)] if engine == "ray" else []
        command = [
            sys.executable, "-m", "grpo_guard", "verify", "-c", str(folder / "guard.yaml"),
            str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "--format", "json", *on_ray,
        ]  # fmt: skip
        started, most = time.monotonic(), dict.fromkeys(FIELDS, 0)
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        turn = 0
        while driver.poll() is None:
            for name, value in resident(driver.pid).items():
                most[name] = max(most[name], value)
            turn += 1
            if turn % 60 == 0:
                say(f"MiB, {most}, seconds", turn // 2, 0)
            time.sleep(0.5)
        seconds = time.monotonic() - started
        with (folder / "out.jsonl").open(encoding="utf-8") as file:
            written = sum(1 for _ in file)
    return {
        "rows": rows, "engine": engine, "workers": workers, "exit": driver.returncode,
        "verdicts": written, "wall_seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds), "most_mib": most,
    }  # fmt: skip


if __name__ == "__main__":
    study(
        "ray_file",
        measure,
        option("--rows", type=int, default=1_000_000),
        option("--workers", type=int, default=2),
        option("--engine", choices=["ray", "local"], default="ray"),
    )
