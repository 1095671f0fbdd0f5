"""Show the progress of a command: a bar on a terminal, otherwise a line every few seconds."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grpo_guard.cli.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 10.0
"""Seconds between progress lines."""


@contextmanager
def progress(console: "Console", total: int, done: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of ``total`` rows, of which ``done`` are done already, as
    after ``--resume``. The console writes to standard error."""
    if not console.is_terminal:
        with _lines(total, done) as step:
            yield step
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("verifying", total=total, completed=done)
        yield lambda: bar.advance(task)


@contextmanager
def _lines(total: int, done: int) -> Iterator[Callable[[], None]]:
    ended = threading.Event()

    def print_lines() -> None:
        # By the clock, because a batch can take minutes if a model reads it.
        while not ended.wait(EVERY):
            echo(f"verified {done:,} of {total:,} rows", err=True)

    def step() -> None:
        nonlocal done
        done += 1

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield step
    finally:
        ended.set()
        printer.join()
