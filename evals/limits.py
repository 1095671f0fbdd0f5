"""``--fail-under`` and ``--max-honest``: limits that end a command with exit status 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

FailUnder = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE",
        help="Exit 1 where less of an attack's poison is rejected, such as 0.95.",
    ),
]  # fmt: skip
MaxHonest = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE", help="Exit 1 where more honest work is rejected, as 0.01."
    ),
]


@dataclass(frozen=True, slots=True)
class Counted:
    """How much of one kind a defence rejected; ``poison`` is to be rejected, honest work not."""

    defence: str
    kind: str
    rejected: int
    total: int
    poison: bool


def broken(
    counts: Iterable[Counted], fail_under: float | None, max_honest: float | None
) -> list[str]:
    """What is wrong with each count that is beyond a limit; empty where none is.

    Where nothing was counted a limit is broken: nothing shows that it holds.
    """
    from grpo_guard.evals.stats import Rate, percent

    found = []
    for count in counts:
        limit = fail_under if count.poison else max_honest
        if limit is None:
            continue
        rate = Rate(count.rejected, count.total)
        share = rate.value
        if share is None or (share < limit if count.poison else share > limit):
            bound = "at least" if count.poison else "at most"
            found.append(
                f"{count.defence}, {count.kind}: expected {bound} "
                f"{percent(limit)} rejected, got {count.rejected} / {count.total}"
                + (f" = {rate.value_text} ({rate.interval_text})" if count.total else "")
            )
    return found


def end_where_broken(
    counts: Iterable[Counted], fail_under: float | None, max_honest: float | None
) -> None:
    """End the command with 1 and a line for each row beyond a limit."""
    found = broken(counts, fail_under, max_honest)
    for line in found:
        typer.echo(f"failed: {line}", err=True)
    if found:
        raise typer.Exit(1)
