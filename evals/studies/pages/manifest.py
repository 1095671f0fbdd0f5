"""The table of all files of results: their version and date, pages, and how to rerun them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from grpo_guard.evals.studies.figures import RERUN, files, made_by
from grpo_guard.evals.studies.pages.cells import NOTHING, ROOT, files_of, table

Tables: TypeAlias = Mapping[str, Callable[[], str]]
_MARK: Final = re.compile(r"<!-- table: ([\w-]+) -->")
_OWN: Final = "figures"
"""The page that has this table, and the table's name."""


def shown_on(tables: Tables) -> dict[str, list[str]]:
    """Return the pages that show or name each file: those of its tables, and those that cite it."""
    of_table = {name: files_of(make) for name, make in tables.items() if name != _OWN}
    found: dict[str, list[str]] = {name: [] for name in files()}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        marked = {file for mark in _MARK.findall(text) for file in of_table.get(mark, ())}
        for name, pages in found.items():
            if name in marked or (f"{name}.json" in text and page.stem != _OWN):
                pages.append(page.stem)
    return found


def manifest(tables: Tables) -> str:
    """Return the table."""
    pages = shown_on(tables)
    rows = []
    for name in files():
        again = "`make figures`" if name in RERUN else NOTHING
        rows.append([f"`{name}`", *made_by(name), ", ".join(pages[name]) or NOTHING, again])
    return table(["file", "made by", "on", "pages", "rerun by"], rows)
