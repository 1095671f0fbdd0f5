"""The only ways in which commands write to a terminal.

Messages quote names of files, names of nodes and texts of strangers. The terminal would execute an
escape sequence in one of them, which could rewrite lines that the operator has read. Here such
sequences are shown, and only our own colours and progress bars are executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from grpo_guard.core.quoting import printable

if TYPE_CHECKING:
    from rich.console import Console


# Releases of typer bring a click of their own, or use the one that is installed.
_REFUSAL: Any = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")


def echo(text: str = "", *, err: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    typer.echo(printable(text), err=err)


def terminal(**options: Any) -> Console:
    """A rich console with these options that shows control characters instead of sending them."""
    return _console_class()(**options)  # type: ignore[no-any-return]


@cache
def _console_class() -> Any:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Printable(Console):
        """Shows escape sequences: rich removes only bells from a text."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                # Rich's own commands come as control segments.
                yield Segment(text if control else printable(text), style, control)

    return Printable


class Commands(TyperGroup):
    """Commands whose refusals quote arguments, which a shell may have made of files' names."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _printable_refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _printable_refusals(), _missing_extras():
            return super().invoke(ctx)


@contextmanager
def _missing_extras() -> Iterator[None]:
    """End a command that lacks an optional package with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        from grpo_guard.core.registry import with_remedy

        if (shown := with_remedy(error)) is error:
            raise  # no extra brings it: a module of the user's own is broken
        echo(str(shown), err=True)
        raise typer.Exit(2) from None


@contextmanager
def _printable_refusals() -> Iterator[None]:
    try:
        yield
    except _REFUSAL as error:
        error.message = printable(error.message)
        raise
