"""Progress output for the commands in `evals`: bars on a terminal, plain lines elsewhere."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

Say: TypeAlias = Callable[..., None]
"""Progress callback, called with (description, done, total) and optional figures to show; can be
called from any thread."""


@contextmanager
def reporter(console: Console, *, every: int | None = None, whole: int = 0) -> Iterator[Say]:
    """Yield a function that shows the progress reported to it.

    Args:
        every: Without a terminal, print a line every time this many more items are done; None for
            about ten lines per kind of work.
        whole: Total number of items over all kinds of work, shown as an extra bar; 0 for none.
    """
    lock = threading.Lock()
    if not console.is_terminal:
        shown: dict[str, int] = {}

        def line(what: str, done: int, total: int, figures: str = "") -> None:
            step = done // every if every else done * 10 // max(1, total)
            with lock:
                if step > shown.get(what, 0 if every else -1) or done == total:
                    shown[what] = step
                    console.out(f"{what}: {done}/{total}  {figures}".rstrip())

        yield line
        return

    def shortened() -> Column:
        return Column(ratio=1, no_wrap=True, overflow="ellipsis")

    # The bar and the time keep their width; names and figures share the rest.
    columns = (
        TextColumn("{task.description}", table_column=shortened()),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", table_column=shortened()),
    )
    with Progress(*columns, console=console, expand=True) as bars:
        everything = bars.add_task("all rounds", total=whole, figures="", visible=whole > 0)
        tasks: dict[str, TaskID] = {}
        finished: dict[str, int] = {}

        def report(what: str, done: int, total: int, figures: str = "") -> None:
            with lock:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=total, figures="")
                finished[what] = done
                # With many kinds of work, the bars of finished ones would fill the screen.
                shown = not whole or done < total
                bars.update(
                    tasks[what], completed=done, total=total, figures=figures, visible=shown
                )
                bars.update(everything, completed=sum(finished.values()))

        yield report
