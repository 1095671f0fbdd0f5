"""The table of all files of results, by the version that made them."""

from __future__ import annotations

from collections import defaultdict

from grpo_guard.evals.studies.figures import RERUN, files, made_by
from grpo_guard.evals.studies.pages.cells import table


def manifest() -> str:
    """Return the table: a row per version, with the files that `make figures` reruns marked."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in files():
        found[made_by(name)[0]].append(f"`{name}`{' *' if name in RERUN else ''}")
    return table(["made by", "files"], [[who, ", ".join(found[who])] for who in sorted(found)])
