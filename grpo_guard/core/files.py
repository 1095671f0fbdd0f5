"""Write files atomically, or incrementally under their final name; say where a file is missing."""

import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from grpo_guard.core.model_paths import unexpanded
from grpo_guard.core.naming import near

_MOST_NAMES: Final = 1_000
"""Maximum number of files in a folder to search for a similar name."""


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, so that a reader never sees a partial file. If the file
    cannot be written, OSError is raised and nothing changes.

    The text first goes to a new file in the same folder under an unguessable name: in a folder that
    others can write to, a link planted under a predictable name would make us overwrite another of
    our files. If the path exists but is not a regular file (a terminal, a pipe, ``/dev/null``), it
    is written in place; root could otherwise replace a device with a file.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with open(os.open(path, os.O_WRONLY), "w", encoding="utf-8") as device:
            device.write(text)
        return
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    new = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def growing(path: Path, resume: bool = False) -> Iterator[TextIO]:
    """Open a UTF-8 text file that is visible under its final name while being written; ``-`` means
    standard output.

    An existing file is replaced at once, or appended to if ``resume`` is set. If the path is a
    link, the link itself is replaced, not its target, as in `write_whole`. A terminal, a pipe or a
    device is written in place.
    """
    if str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    if resume and path.exists():
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    elif path.exists() and not path.is_file():
        number = os.open(path, os.O_WRONLY)
    else:
        partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            partial.replace(path)
        except BaseException:
            os.close(number)
            partial.unlink(missing_ok=True)
            raise
    with open(number, "w", encoding="utf-8") as file:
        yield file


def obstacle(folder: Path) -> tuple[Path, str] | None:
    """Return the path that prevents a folder from being created, with the reason, or None if the
    folder exists or can be created. Raises OSError or ValueError if the name is invalid."""
    around = (folder, *folder.parents)
    there = next(one for one in around if one.exists() or one.is_symlink())
    if not there.is_dir():
        return there, "File exists" if there == folder else "Not a directory"
    if there != folder and not os.access(there, os.W_OK | os.X_OK):
        return there, "Permission denied"
    return None


def require_other(out: Path, *read: Path) -> None:
    """Raise FileExistsError if the output would overwrite one of the input files."""
    for path in read:
        if out.is_file() and path.is_file() and out.samefile(path):
            raise FileExistsError(f"{out}: expected another file than the input")


def nowhere(source: Path, expected: str) -> str:
    """Say where a missing file or folder, ``expected`` to be something, was looked for, and which
    existing file was probably meant."""
    if re.match("[a-z0-9]+:/", str(source)):  # `Path` turns "//" into "/"
        return "expected a file or folder here, got an address; fetch it first"
    folder = source.parent
    here = f"; looked in {Path.cwd() / folder}"
    try:
        names = [path.name for path in islice(folder.iterdir(), _MOST_NAMES)]
    except OSError:
        why = unexpanded(source) or f"{here}, which is no folder"
        return f"expected {expected}, got none there{why}"
    nearest = near(names, source.name)
    hint = f"; did you mean {str(folder / nearest[0])!r}?" if nearest else ""
    return f"expected {expected}, got none there{here}{hint}"
