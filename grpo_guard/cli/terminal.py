"""The only functions that commands use to write to a terminal.

Messages quote file names, node names and text from strangers. The terminal would execute an escape
sequence in any of them, which could rewrite lines the operator has already read. Here, such
sequences are displayed instead, and only our own colours and progress bars are executed.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from grpo_guard.core.naming import near
from grpo_guard.core.quoting import printable

if TYPE_CHECKING:
    from rich.console import Console


# Depending on its release, typer bundles its own click or uses the installed one.
_REFUSAL: Any = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")

_NO_CHOICE = re.compile(r"'([^']{1,200})' is not one of ('.{1,2000}')\.\Z", re.DOTALL)


def echo(text: str = "", *, err: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    typer.echo(printable(text), err=err)


def exit_with(message: str, code: int = 2) -> NoReturn:
    """End the command with a message on standard error and this exit status."""
    echo(message, err=True)
    raise typer.Exit(code)


def terminal(**options: Any) -> "Console":
    """Create a rich console that displays control characters instead of sending them."""
    return _console_class()(**options)  # type: ignore[no-any-return]


@cache
def _console_class() -> Any:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Printable(Console):
        """Displays escape sequences; rich itself removes only bells and the like."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                # Rich's own commands are control segments.
                yield Segment(text if control else printable(text), style, control)

    return Printable


class Commands(TyperGroup):
    """A command group that escapes the arguments quoted in its refusals, because a shell may have
    expanded them from file names.

    The option for a guard file is ``--config`` if the file configures the command, and ``--guard``
    if it is one of several things being measured. Either name is accepted for the other.
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
    """Make a command, or a group's commands, accept both options for a guard file, and hide the
    types of flags in its help."""
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
    """Replace the options in ``other`` with the names that the command knows."""
    end = args.index("--") if "--" in args else len(args)
    known = []
    for argument in args[:end]:
        name, equals, value = argument.partition("=")
        known.append(other.get(name, name) + equals + value)
    return known + args[end:]


def _hide_types_of_flags(command: Any, ctx: Any) -> None:
    """Hide the type of options that take no value; some releases of typer show ``<bool>``."""
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = parameter.display_type = lambda ctx: None


@contextmanager
def _missing_extras() -> Iterator[None]:
    """If an optional package is missing, exit with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        from grpo_guard.core.registry import with_remedy

        if (shown := with_remedy(error)) is error:
            raise  # not in any extra: one of the user's own modules is broken
        exit_with(str(shown))


@contextmanager
def _printable_refusals() -> Iterator[None]:
    try:
        yield
    except _REFUSAL as error:
        error.message = printable(_with_nearest(error.message))
        raise


def _with_nearest(message: str) -> str:
    """Extend the refusal of a choice with the choice that was probably meant."""
    message = message.replace("Value error, ", "")
    if re.search(r"unexpected extra argument.*\.(ya?ml|jsonl|parquet)\b", message):
        return f"{message}; give one file of completions, and a guard file after -c"
    found = _NO_CHOICE.search(message)
    nearest = near(re.findall(r"'([^']*)'", found[2]), found[1]) if found else []
    return f"{message.rstrip('.')}; did you mean {nearest[0]!r}?" if nearest else message
