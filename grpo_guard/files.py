"""Writing files that are whole or not there, and files that grow."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8, so that a reader never sees half of it.

    It is written beside its place first, under a name that nobody can guess and that must be new:
    in a folder where others may write, a link planted under a name known beforehand would have some
    other file of ours overwritten. What is there and no file (a terminal, a pipe, ``/dev/null``) is
    written to as it is: root could put a file in its place.

    Raises:
        OSError: it cannot be written; what stood there stands there still.
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
    """A text file in UTF-8 that is there, under its name, while it is written.

    It takes the place of what stood there as soon as it is opened; of a link, and not of what that
    points to, as in `write_whole`. A terminal, a pipe or a device is written to as it is.

    Args:
        path: Its place; ``-`` is standard output.
        resume: Write behind what is there, which must be a file.

    Raises:
        OSError: it cannot be opened.
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


def require_other(out: Path, *read: Path) -> None:
    """Refuse to put a result in the place of what it is made from.

    Raises:
        FileExistsError: ``out`` is one of the files that are read.
    """
    for path in read:
        if out.is_file() and path.is_file() and out.samefile(path):
            raise FileExistsError(f"{out}: expected another file than the one that is read")
