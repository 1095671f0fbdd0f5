"""Helpers shared by commands: how they refuse files, and which verifiers a guard file has."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from grpo_guard.cli.terminal import echo, exit_with

Mapped: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="FIELD=NAME", help="A column by another name: text=answer."),
]


@contextmanager
def bad_input(*kinds: type[Exception]) -> Iterator[None]:
    """End the command with status 2 and the error's message if the block raises one of ``kinds``,
    `InputError`, `ConfigError` or `FileExistsError`."""
    from grpo_guard.config import ConfigError
    from grpo_guard.core.jsonl import InputError

    refused: tuple[type[Exception], ...] = (InputError, ConfigError, FileExistsError, *kinds)
    try:
        yield
    except refused as error:
        exit_with(str(error))


def require_folder_of(out: Path) -> None:
    """Check up front that the output is not a folder, and that the folder it goes into exists;
    raises InputError with the remedy."""
    from grpo_guard.core.jsonl import InputError

    if not out.parent.is_dir():
        raise InputError(_no_folder(out))
    if out.is_dir():
        raise InputError(f"{out}: expected a file, got a folder; name a file in it")


def _no_folder(out: Path) -> str:
    folder = str(out.parent)
    return (
        f"{out}: expected a file in a folder that exists, got no folder {folder}; make it: "
        f"mkdir -p {shlex.quote(folder)}"
    )


def tell_left_out(source: Path, columns: list[str]) -> None:
    """Print a single notice listing the columns that no field was read from."""
    from grpo_guard.cli.formats import listed

    if len(columns) == 1:
        name = listed(columns)
        echo(f"{source}: column not read: {name}; --map FIELD={name} reads it", err=True)
    elif columns:
        names = listed(columns)
        echo(f"{source}: columns not read: {names}; --map FIELD=COLUMN reads one", err=True)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """End the command with status 1 if the block cannot write the result, or with status 2 if the
    result's folder is missing."""
    try:
        yield
    except OSError as error:
        if str(out) != "-" and not out.parent.is_dir():
            exit_with(_no_folder(out))
        exit_with(f"{out}: expected a writable file, got {error.strerror}", 1)


def reads_log_probs(leaf: dict[str, Any]) -> bool:
    """Whether the verifier of a leaf scores tokens under the shared policy. Raises ConfigError if
    no verifier has the name given in the leaf's ``type``."""
    from grpo_guard.config import ConfigError
    from grpo_guard.core.registry import VERIFIERS, UnknownNameError, load

    try:
        kind = load(VERIFIERS, str(leaf["type"]))
    except UnknownNameError as error:
        raise ConfigError(f"verifier.type: {error}") from None
    # Compared by name: importing the class would load torch, which only these verifiers need.
    names = {f"{base.__module__}.{base.__qualname__}" for base in getattr(kind, "__mro__", ())}
    return "grpo_guard.logprob.verifier.LogProbVerifier" in names
