"""Helpers that several commands share: how they refuse files, and which verifiers files hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from grpo_guard.cli.terminal import echo


@contextmanager
def bad_input(*kinds: type[Exception]) -> Iterator[None]:
    """End the command with status 2 and the error's message if one of ``kinds`` is raised, or an
    `InputError`, a `ConfigError` or a `FileExistsError`."""
    from grpo_guard.config import ConfigError
    from grpo_guard.core.jsonl import InputError

    refused: tuple[type[Exception], ...] = (InputError, ConfigError, FileExistsError, *kinds)
    try:
        yield
    except refused as error:
        echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """End the command with status 1 if a result cannot be written."""
    try:
        yield
    except OSError as error:
        echo(f"{out}: expected a writable file, got {error.strerror}", err=True)
        raise typer.Exit(1) from None


def reads_log_probs(leaf: dict[str, Any]) -> bool:
    """Whether the verifier of a leaf scores tokens under the shared policy.

    Raises:
        ConfigError: no verifier has that name.
    """
    from grpo_guard.config import ConfigError
    from grpo_guard.core.registry import VERIFIERS, UnknownNameError, load
    from grpo_guard.logprob.verifier import LogProbVerifier

    try:
        kind = load(VERIFIERS, str(leaf["type"]))
    except UnknownNameError as error:
        raise ConfigError(f"verifier.type: {error}") from None
    return isinstance(kind, type) and issubclass(kind, LogProbVerifier)
