"""What ``grpo-guard eval detect`` prints: progress while it works, the matrix at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from grpo_guard.evals.detect.config import Say
from grpo_guard.evals.detect.matrix import Row, rates
from grpo_guard.evals.report.tables import Table
from grpo_guard.evals.stats import Rate

HEADER = ("completions", "verifier", "rejected", "rate", "95 % interval", "abstained")
_LINES = 10  # lines per kind of work where there is no terminal


@contextmanager
def reporter(console: Console) -> Iterator[Say]:
    """Yield a progress callback: bars on a terminal, about ten plain lines a step elsewhere."""
    if not console.is_terminal:
        yield _line_printer(console)
        return
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def say(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield say


def _line_printer(console: Console) -> Callable[[str, int, int], None]:
    shown: dict[str, int] = {}

    def say(what: str, done: int, total: int) -> None:
        step = done * _LINES // max(1, total)
        if step > shown.get(what, -1):
            shown[what] = step
            console.print(f"{what}: {done}/{total}", markup=False, highlight=False)

    return say


def matrix_table(rows: Sequence[Row]) -> Table:
    """What each verifier rejected, kind by kind."""
    cells = []
    for row in rates(rows):
        rate = Rate(row.rejected or 0, row.n)
        said = f"{rate.count}/{rate.total}", rate.value_text, rate.interval_text
        cells.append([row.attack, row.defence, *said, str(row.abstained)])
    return Table(HEADER, cells)
