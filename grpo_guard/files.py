"""Writing files that are whole or not there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


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


def require_other(out: Path, *read: Path) -> None:
    """Refuse to put a result in the place of what it is made from.

    Raises:
        FileExistsError: ``out`` is one of the files that are read.
    """
    for path in read:
        if out.is_file() and path.is_file() and out.samefile(path):
            raise FileExistsError(f"{out}: expected another file than the one that is read")
