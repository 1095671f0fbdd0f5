"""Writing files that are whole or not there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8, so that a reader never sees half of it.

    It is written beside its place first, under a name that nobody can guess and that must be new:
    in a folder where others may write, a link planted under a name known beforehand would have some
    other file of ours overwritten.

    Raises:
        OSError: it cannot be written; what stood there stands there still.
    """
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    new = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
