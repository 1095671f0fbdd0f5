"""Completions of a file one by one, so that a file may be larger than memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpo_guard.cli.formats import is_plain, mapping_of, write_lines
from grpo_guard.completion import Completion, CompletionError
from grpo_guard.jsonl import MAX_LINE_BYTES, InputError, parse_object, row_id
from grpo_guard.prompts import prompt_key


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file.

    Args:
        completion: None where the line holds none.
        problem: Why not, with file and line.
        id: What the sender calls the row; None where nothing is said.
    """

    completion: Completion | None
    problem: str = ""
    id: str | int | None = None


class Rows:
    """Lines of a file by number, the empty ones left out.

    Kept are places and what tells groups apart, 16 bytes a row.

    Args:
        file: Opened for reading, at its beginning, seekable.
        name: Of the file, for messages.
        keep_going: Whether a line that holds no completion is a row all the same.

    Raises:
        InputError: a line is malformed. All of them are read first, so that nothing is verified
            before the whole file is known to be readable.
    """

    def __init__(self, file: IO[bytes], name: str, *, keep_going: bool = False) -> None:
        self._file, self._name = file, name
        places, lines, keys = array("Q"), array("Q"), array("Q")
        place = number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.isspace():
                row = self._row(line, number)
                if row.problem and not keep_going:
                    raise InputError(row.problem)
                places.append(place)
                lines.append(number)
                keys.append(number if row.completion is None else group_of(row.completion))
            place += len(line)
        self._places, self._lines = places, lines
        self.groups: NDArray[np.uint64] = np.frombuffer(keys, np.uint64)
        """Equal for rows of one prompt and round, shape [n]."""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        self._file.seek(self._places[index])
        return self._row(self._file.readline(MAX_LINE_BYTES + 1), self._lines[index])

    def _row(self, line: bytes, number: int) -> Row:
        known: str | int | None = None
        try:
            data = parse_object(line, MAX_LINE_BYTES)
            known = row_id(data.pop("id", None))
            return Row(Completion.from_dict(data), id=known)
        except CompletionError as error:
            problem = f"{error.field}: {error.problem}"
        except InputError as error:
            problem = f"(line): {error}"
        return Row(None, f"{self._name}:{number}: {problem}", known)


def group_of(completion: Completion) -> int:
    """Equal for completions of one prompt and round, in 64 bits.

    Whoever finds two prompts of one digest has them verified in one batch, which harms nobody.
    """
    said = f"{completion.round} {prompt_key(completion.prompt)}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "little")


@contextmanager
def opened(source: Path, mapped: Sequence[str] = ()) -> Iterator[IO[bytes]]:
    """Lines of JSON that can be read twice: standard input (``-``) and files of other formats are
    put aside in a temporary file first.

    Args:
        source: A file or folder, see `grpo_guard.cli.formats`.
        mapped: ``FIELD=NAME`` for columns with other names.

    Raises:
        InputError: it cannot be read.
    """
    columns = mapping_of(list(mapped))
    if str(source) == "-":
        if columns:
            raise InputError("--map: expected a file next to it, got standard input")
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.seek(0)
            yield copy
        return
    if source.exists() and not is_plain(source, columns):
        with tempfile.TemporaryFile() as copy:
            write_lines(source, columns, copy)
            copy.seek(0)
            yield copy
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise InputError(
            f"{source}: (file): expected a readable file, got {error.strerror}"
        ) from None
    with file:
        yield file


def whole_groups(groups: ArrayLike, most: int) -> Iterator[list[int]]:
    """Numbers of rows, batch by batch, with those of one prompt and round together.

    What compares the completions of a group must see all of it, wherever in the file they stand.

    Args:
        groups: `group_of` each, shape [n].
        most: In one batch, unless a single group has more.
    """
    _, first, group = np.unique(
        np.asarray(groups, np.uint64), return_index=True, return_inverse=True
    )
    if not len(first):
        return
    first_of = first[group.reshape(-1)]
    order = np.argsort(first_of, kind="stable")
    ends = [*(np.flatnonzero(np.diff(first_of[order])) + 1).tolist(), len(order)]
    begin = reached = 0
    for end in ends:
        if end - begin > most and reached > begin:
            yield order[begin:reached].tolist()
            begin = reached
        reached = end
    yield order[begin:].tolist()
