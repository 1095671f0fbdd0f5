"""Cells and tables for the results pages: counts, shares and intervals in one notation."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from grpo_guard.evals.stats import Rate

ROOT: Final = Path(__file__).resolve().parents[3]
RESULTS: Final = ROOT / "docs" / "results"
NOTHING: Final = "-"


@cache
def figures(name: str) -> Any:
    """Return the parsed file ``docs/results/NAME.json``; callers must not change it."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def count(hits: int, total: int) -> str:
    """Format a count with its Wilson interval: ``3 / 120 = 2.5 % (0.9-7.1)``."""
    rate = Rate(hits, total)
    if rate.interval is None:
        return NOTHING
    if hits in (0, total):
        return f"{rate.count_text} ({_hyphen(rate.interval_text)})"
    between = _hyphen(rate.interval_text).removesuffix(" %")
    return f"{rate.count_text} = {rate.value_text} ({between})"


def of(found: Mapping[str, Any]) -> str:
    """Format a study's figure, ``{"hits": ..., "total": ...}``."""
    return count(found["hits"], found["total"])


def short(found: Mapping[str, Any]) -> str:
    """Format a count on its own: ``3 / 120``."""
    return f"{found['hits']:,} / {found['total']:,}" if found["total"] else NOTHING


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"table {header[0]!r}: expected {len(header)} cells in each row")
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _hyphen(text: str) -> str:
    return text.replace("–", "-")
