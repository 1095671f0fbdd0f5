"""Rerun the figures that a two-core machine can handle, and list which version made each file.

    python -m grpo_guard.evals.studies.figures [--list] [NAME ...]

A file made by this minor version is left alone unless it is named. A command's progress is kept in
``.measure``, so an interrupted run can resume. Files from earlier versions that pages still show
are listed in `KEPT`; a test fails for any other such file. After a rerun, check the sentences that
cite the file, because only marked tables are updated automatically.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from grpo_guard import __version__
from grpo_guard.evals.results import today, write_text
from grpo_guard.evals.studies.harness import CACHE
from grpo_guard.evals.studies.pages.cells import RESULTS, ROOT

UNKNOWN: Final = "unknown"
_BENCHMARKS: Final = ROOT / "docs" / "benchmarks"
_STUDY: Final = "-m grpo_guard.evals.studies."
_SPOT_CHECKS: Final = ",".join(f"spot_checks_{share}" for share in (5, 10, 25, 50, 100))
RERUN: Final[Mapping[str, str]] = {
    "shares": _STUDY + "shares -o FILE",
    "length-cost": _STUDY + "length_cost --rounds 6 -o FILE",
    "reader-cost-bundled": _STUDY + "reader.cost --rounds 96 -o FILE",
    "serve-sustained": _STUDY + "serve_load --part sustained -o FILE",
    "scale": _STUDY + "scale --memory 10000,100000 -o FILE",
    "serve-load": _STUDY + "serve_load --part speed -o FILE",
    "announced-bundled": _STUDY + "announced --honest 2048 -o FILE",
    "ledger-scale": _STUDY + "ledger --nodes 100000 --rounds 3 -o FILE",
    "swarm-incidents": _STUDY + "incidents -o FILE",
    **{
        f"demo-seed-{seed}": f"-m grpo_guard demo --seed {seed} --iterations 80 -o DIR"
        for seed in range(5)
    },
    "swarm-spot-checks": "-m grpo_guard eval swarm --quick --workers 2 --attack text,one_of_twelve "
    f"--defence none,{_SPOT_CHECKS} -o DIR",
}
"""Maps a file to Python's arguments, quickest first; from a DIR, its results.json is taken."""
KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    "0.1.0": (
        "benchmarks/cpu", "detect-smollm2-gsm8k-fresh", "samplers-trl",
        "seed-replay-smollm2-gsm8k", "swarm-adaptive-coin", "swarm-adaptive-unread",
        "swarm-exchange", "swarm-leaves", "swarm-models",
        "swarm-no-gain-helpers", "swarm-no-gain-short", "swarm-no-gain", "swarm-shares",
        "swarm-standard",
    ),
    "0.2.0": (
        "announced-bundled", "demo-seed-0", "demo-seed-1", "demo-seed-2", "demo-seed-3",
        "demo-seed-4", "detect-smollm2-gsm8k", "extras", "ledger-scale", "length-cost",
 "samplers-nucleus", "samplers-penalty",
        "samplers-top_k", "scale", "serve-load", "serve-sustained", "swarm-authors",
        "swarm-length", "swarm-smollm2-code", "swarm-smollm2-sums",
        "swarm-smollm2-bets", "swarm-smollm2", "swarm-spot-checks", "swarm-untruncated",
    ),
    UNKNOWN: ("judge-probe-shipped", "reference-likelihood",
              "shipped-judge"),
}  # fmt: skip
"""Maps a version to the files made by it that pages still show."""


def files() -> list[str]:
    """Return the names of all result files, without extensions."""
    found = [path.stem for path in RESULTS.glob("*.json")]
    return sorted([*found, *(f"benchmarks/{p.stem}" for p in _BENCHMARKS.glob("*.json"))])


def made_by(name: str) -> tuple[str, str]:
    """Return the version that made a file, and the date; either can be `UNKNOWN`."""
    data = json.loads(_path(name).read_text(encoding="utf-8"))
    versions = data.get("versions")
    version = versions.get("grpo_guard") if isinstance(versions, dict) else None
    return str(version or UNKNOWN), str(data.get("date") or UNKNOWN)


def misplaced(current: str = __version__) -> Iterator[str]:
    """Yield a message for each earlier version's file outside `KEPT`, and each wrong entry."""
    kept = {name: version for version, names in KEPT.items() for name in names}
    for name in sorted({*files(), *kept}):
        version = made_by(name)[0] if _path(name).is_file() else "no version: it is gone"
        if name in kept and version != kept[name]:
            yield f"{name}: KEPT says that {kept[name]} made it, the file says {version}"
        elif name not in kept and _older(version, current):
            how = "make figures reruns it" if name in RERUN else "rerun it, or list it in KEPT"
            yield f"{name}: made by {version}, and this is {current}; {how}"


def stale(current: str = __version__) -> list[str]:
    """Return the files that can be rerun and were made by an earlier minor version."""
    return [n for n in RERUN if not _path(n).is_file() or _older(made_by(n)[0], current)]


def rerun(name: str) -> None:
    """Run a file's command and, if it succeeds, put its figures in place with today's date."""
    folder = ROOT / CACHE / "figures" / name
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "results.json"
    places = {"FILE": str(made), "DIR": str(folder)}
    words = [places.get(word, word) for word in RERUN[name].split()]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)
    data = json.loads(made.read_text(encoding="utf-8"))
    data["date"] = today()
    write_text(_path(name), json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    shutil.rmtree(folder)


def main() -> None:
    """Rerun the stale or named files, then rewrite the tables on the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="only list all files and who made them")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RERUN))
    given: Any = parser.parse_args()
    if unknown := [name for name in given.names if name not in RERUN]:
        parser.error(f"{unknown[0]}: expected one of {', '.join(RERUN)}")
    if given.list:
        for name in files():
            print(name, *made_by(name), "can be rerun" if name in RERUN else "")
        return
    todo = given.names or stale()
    for number, name in enumerate(todo, 1):
        print(f"{number}/{len(todo)} {name}: python {RERUN[name]}", flush=True)
        rerun(name)
    subprocess.run([sys.executable, "-m", "grpo_guard.evals.studies.pages"], check=True, cwd=ROOT)


def _path(name: str) -> Path:
    return (ROOT / "docs" if "/" in name else RESULTS) / f"{name}.json"


def _older(made: str, current: str) -> bool:
    """Whether a file's version is an earlier minor version, or unknown."""
    return made == UNKNOWN or _minor(made) < _minor(current)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


if __name__ == "__main__":
    main()
