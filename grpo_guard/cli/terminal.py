"""The only ways in which commands write to a terminal.

Messages quote names of files, names of nodes and texts of strangers. The terminal would execute an
escape sequence in one of them, which could rewrite lines that the operator has read. Here such
sequences are shown, and only our own colours and progress bars are executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from grpo_guard.core.naming import near
from grpo_guard.core.quoting import printable

if TYPE_CHECKING:
    from rich.console import Console


# Releases of typer bring a click of their own, or use the one that is installed.
_REFUSAL: Any = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")

_NO_CHOICE = re.compile(r"'([^']{1,200})' is not one of ('.{1,2000}')\.\Z", re.DOTALL)


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
    """Commands whose refusals quote arguments, which a shell may have made of files' names.

    A guard file is ``--config`` if it is the command's own, and ``--guard`` if it is one of several
    things that are measured; each is understood under the other's name.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            _tidy(found)
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _hide_types_of_flags(self, ctx)
        super().format_help(ctx, formatter)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _printable_refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _printable_refusals(), _missing_extras():
            return super().invoke(ctx)


def _tidy(command: Any) -> None:
    """Let a command, or each of a group's, know both names of a guard file and no type of flags."""
    if getattr(command, "tidied", False):
        return
    command.tidied = True
    for member in getattr(command, "commands", {}).values():
        _tidy(member)
    parse, show = command.parse_args, command.format_help
    names = {option for parameter in command.params for option in parameter.opts}
    other: dict[str, str] = {}
    if "--config" in names and "--guard" not in names:
        other = {"--guard": "--config"}
    elif "--guard" in names and "--config" not in names:
        other = {"--config": "--guard", "-c": "--guard"}

    def parse_args(ctx: Any, args: list[str]) -> Any:
        return parse(ctx, _renamed(args, other))

    def format_help(ctx: Any, formatter: Any) -> None:
        _hide_types_of_flags(command, ctx)
        show(ctx, formatter)

    command.parse_args, command.format_help = parse_args, format_help


def _renamed(args: list[str], other: dict[str, str]) -> list[str]:
    """Arguments in which options have the names that the command knows."""
    end = args.index("--") if "--" in args else len(args)
    known = []
    for argument in args[:end]:
        name, equals, value = argument.partition("=")
        known.append(other.get(name, name) + equals + value)
    return known + args[end:]


def _hide_types_of_flags(command: Any, ctx: Any) -> None:
    """Releases of typer write ``<bool>`` behind an option that takes no value."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = parameter.display_type = lambda ctx: None


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
        error.message = printable(_with_nearest(error.message))
        raise


def _with_nearest(message: str) -> str:
    """A refusal of a choice with the one that was probably meant."""
    message = message.replace("Value error, ", "")
    if re.search(r"unexpected extra argument.*\.(ya?ml|jsonl|parquet)\b", message):
        return f"{message}; one file of completions is read, and a guard file follows -c"
    found = _NO_CHOICE.search(message)
    nearest = near(re.findall(r"'([^']*)'", found[2]), found[1]) if found else []
    return f"{message.rstrip('.')}; did you mean {nearest[0]!r}?" if nearest else message
