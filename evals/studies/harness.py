"""What all studies have in common: counts with intervals, printed and written in the same way.

A figure is ``{"hits", "total", "low", "high"}``, a count with its 95 % Wilson interval; figures on
verdicts also have ``"abstained"`` and ``"kinds"``. A study's file is a tree of such figures after
``"kind"``, ``"command"``, ``"versions"``, ``"seconds"`` and ``"date"``. A figure without
observations raises no error: its interval is the whole of [0, 1].
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.results import today, versions, write_text
from grpo_guard.evals.stats import Rate

RESULTS: Final = Path("docs/results")
CACHE: Final = Path(".measure")
"""Folder where slow studies keep their samples, so that an interrupted study can resume."""

Option: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]


def rate(hits: int, total: int) -> dict[str, Any]:
    """Return a count with its 95 % Wilson interval."""
    low, high = Rate(hits, total).interval or (0.0, 1.0)
    return {"hits": hits, "total": total, "low": low, "high": high}


def rejected(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Count the rejections among verdicts, the abstentions, and the kinds of the first findings."""
    kinds = Counter(v.findings[0].kind for v in verdicts if v.rejected and v.findings)
    found = rate(sum(v.rejected for v in verdicts), len(verdicts))
    return found | {"abstained": sum(v.abstained for v in verdicts), "kinds": dict(kinds)}


def verify(
    verifier: CompletionVerifier, rows: Sequence[Completion], at_once: int = 0
) -> list[Verdict]:
    """Return the verdicts on all rows, with ``at_once`` rows per batch, or one batch if it is 0."""
    step = at_once or max(1, len(rows))
    return [v for i in range(0, len(rows), step) for v in verifier.verify(rows[i : i + step])]


def process_memory(field: str, pid: int | str = "self") -> int:
    """Return a process's memory figure, such as ``VmRSS``, in bytes; on Linux only.

    For the peak, use ``VmHWM``: a new process inherits ``ru_maxrss`` from its parent.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def say(what: str, done: int, wanted: int) -> None:
    """Report progress on standard error, because standard output is only for the figures."""
    print(f"{what}: {done}/{wanted}", file=sys.stderr, flush=True)


def option(*flags: str, **how: Any) -> Option:
    """Define an option of a study, with the arguments of `ArgumentParser.add_argument`."""
    return flags, how


def study(
    kind: str,
    measure: Callable[..., dict[str, Any]],
    *options: Option,
    out: Path | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a study's command line: measure, print the figures and write the file.

    Ends the process with a message if data or a model cannot be read.

    Args:
        kind: The study's name, written to its file.
        measure: Function that takes the options as keywords and returns the tree of figures.
        options: Options of this study; ``-o FILE`` is added.
        out: File to write unless ``-o`` names another; None to only print the figures.
        arguments: The command's arguments. Defaults to those of the process.
    """
    module = sys.modules[measure.__module__]
    name = module.__spec__.name.removesuffix(".__main__") if module.__spec__ else kind
    about = (module.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=about)
    for flags, how in options:
        parser.add_argument(*flags, **how)
    parser.add_argument("-o", "--out", type=Path, default=out, help="write JSON there")
    chosen = vars(parser.parse_args(arguments))
    target, started = chosen.pop("out"), time.monotonic()
    try:
        figures = measure(**chosen)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    for line in lines(figures):
        print(line)
    if target:
        head: dict[str, Any] = {
            "kind": kind,
            "command": " ".join([f"python -m {name}", *_changed_options(parser, chosen)]),
        }
        head |= {"versions": versions(), "seconds": round(time.monotonic() - started)}
        head["date"] = today()
        written = json.dumps(head | figures, indent=1, ensure_ascii=False)
        write_text(target, written + "\n")
        print(f"wrote {target}")


def lines(figures: Any, path: str = "") -> Iterator[str]:
    """Yield one line per figure; text and lists of numbers appear only in the file."""
    if isinstance(figures, dict) and {"hits", "total", "low", "high"} <= figures.keys():
        share = f"({figures['low']:.2%} to {figures['high']:.2%})"
        more = {k: v for k, v in figures.items() if k in ("abstained", "kinds") and v}
        yield f"{path}: {figures['hits']} / {figures['total']} {share} {more or ''}".rstrip()
    elif isinstance(figures, dict):
        for key, inner in figures.items():
            yield from lines(inner, f"{path} | {key}" if path else str(key))
    elif isinstance(figures, list) and figures and isinstance(figures[0], dict):
        for number, row in enumerate(figures):
            name = next((value for value in row.values() if isinstance(value, str)), number)
            yield from lines({k: v for k, v in row.items() if v != name}, f"{path} | {name}")
    elif isinstance(figures, int | float | None):
        yield f"{path}: {figures}"


def _changed_options(parser: argparse.ArgumentParser, chosen: dict[str, Any]) -> Iterator[str]:
    """Yield the options that differ from their defaults, with placeholders for local paths."""
    for action in parser._actions:
        value = chosen.get(action.dest)
        if value in (None, False, action.default):
            continue
        place = action.metavar or ("PATH" if action.type is Path else None)
        for one in value if isinstance(value, list) else [value]:
            words = [*action.option_strings[:1], *([] if one is True else [str(place or one)])]
            yield " ".join(words)
