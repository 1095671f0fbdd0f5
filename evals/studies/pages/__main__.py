"""Rewrite the tables in the docs from ``docs/results``.

    python -m grpo_guard.evals.studies.pages

A table is the text between ``<!-- table: NAME -->`` and ``<!-- end of table -->`` in a page.
"""

import re
from typing import Final

from grpo_guard.evals.results import write_text
from grpo_guard.evals.studies.pages.cells import ROOT
from grpo_guard.evals.studies.pages.names import TABLES

_BLOCK: Final = re.compile(
    r"^<!-- table: (?P<name>[\w-]+) -->\n.*?^<!-- end of table -->$", re.MULTILINE | re.DOTALL
)


def rewritten(text: str) -> str:
    """Return a page's text with all its marked tables regenerated."""
    return _BLOCK.sub(_block, text)


def _block(found: re.Match[str]) -> str:
    name = found["name"]
    return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n<!-- end of table -->"


def main() -> None:
    """Rewrite every page in ``docs`` that has marked tables."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            write_text(page, new)


if __name__ == "__main__":
    main()
