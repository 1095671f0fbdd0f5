"""Read a file's completions one by one, so that the file can be larger than memory."""

import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from grpo_guard.cli.file_rows import behind_mark, is_compressed, list_hint, unpacked
from grpo_guard.cli.formats import (
    is_plain,
    mapping_of,
    require_fields,
    require_known_format,
    write_lines,
)
from grpo_guard.cli.inputs import tell_left_out
from grpo_guard.cli.row_groups import (
    agreed_rounds,
    groups_of,
    label_of,
    node_of,
    prompt_of,
    round_of,
)
from grpo_guard.core.completion import Completion, CompletionError
from grpo_guard.core.files import nowhere
from grpo_guard.core.jsonl import MAX_LINE_BYTES, InputError, parse_object, row_id

WATCHED: Final = ("node", "task", "completion_ids")
"""Names of fields without which some verifiers have nothing to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file of completions: its completion, or None and the ``problem`` of a malformed
    line, with file and line number; the sender's id of the row, if it has one; and the node that a
    malformed line names."""

    completion: Completion | None
    problem: str = ""
    id: str | int | None = None
    named: str | None = None

    @property
    def node(self) -> str | None:
        """The name of the sender, if the row has one."""
        return self.named if self.completion is None else self.completion.node


class Rows:
    """The lines of a file by number, excluding empty lines. Only line offsets, line numbers and
    prompts, rounds, senders and rollouts are kept, 48 bytes per row.

    Args:
        file: Seekable file, open for reading at its first line.
        name: Name of the file, for messages.
        keep_going: Whether a malformed line still counts as a row. Otherwise it raises InputError;
            all lines are read first, so that nothing is verified before that.
    """

    def __init__(self, file: IO[bytes], name: str, *, keep_going: bool = False) -> None:
        self._file, self._name = file, name
        places, lines, prompts, rollouts = array("Q"), array("Q"), array("Q"), array("Q")
        rounds, nodes = array("q"), array("q")
        self.sent: set[str] = set()
        """The fields in `WATCHED` that at least one row has."""
        place, number = file.tell(), 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.isspace():
                row = self._row(line, number)
                if row.problem and not keep_going:
                    raise InputError(row.problem)
                if len(self.sent) < len(WATCHED):
                    self.sent.update(f for f in WATCHED if getattr(row.completion, f, None))
                places.append(place)
                lines.append(number)
                prompts.append(number if row.completion is None else prompt_of(row.completion))
                rollouts.append(label_of(row.completion))
                rounds.append(round_of(row.completion))
                nodes.append(node_of(row.completion))
            place += len(line)
        self._places, self._lines = places, lines
        of_prompts = np.frombuffer(prompts, np.uint64)
        self.rounds = agreed_rounds(
            np.frombuffer(rounds, np.int64), np.frombuffer(nodes, np.int64), of_prompts
        )
        """Round that each row is verified with, shape [n]."""
        self.groups = groups_of(of_prompts, self.rounds, np.frombuffer(rollouts, np.uint64))
        """Key of each row's group, shape [n]. Equal for rows of the same prompt and round, and for
        segments of the same rollout."""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Row:
        self._file.seek(self._places[index])
        return self._row(self._file.readline(MAX_LINE_BYTES + 1), self._lines[index])

    def _row(self, line: bytes, number: int) -> Row:
        known: str | int | None = None
        data: dict[str, Any] | None = None
        try:
            data = parse_object(line, MAX_LINE_BYTES)
            known = row_id(data.pop("id", None))
            require_fields(data)
            return Row(Completion.from_dict(data), id=known)
        except CompletionError as error:
            problem = f"{error.field}: {error.problem}"
        except InputError as error:
            hint = list_hint(line, self._name) if number == 1 else ""
            problem = f"(line): {error}{hint}" if data is None else str(error)
        named = None if data is None else _named(data.get("node"))
        return Row(None, f"{self._name}:{number}: {problem}", known, named)


def require_rows(rows: Sized, source: Path) -> None:
    """Raise InputError if a file holds no completion: a run without output must not look clean."""
    if not len(rows):
        raise InputError(f"{source}: (file): expected at least one completion, got none")


def digest_of(completion: Completion) -> str:
    """Return a digest of prompt, text, node and round, used to recognise the row later."""
    hashed = blake2b(digest_size=8)
    for part in (completion.prompt_text, completion.text, completion.node, completion.round):
        hashed.update(f"{part}".encode("utf-8", "surrogatepass"))
        hashed.update(b"\0")
    return hashed.hexdigest()


def _named(node: Any) -> str | None:
    """Return the name of a malformed row's sender, shortened as any other; None if it has none."""
    try:
        return Completion("", "", node=node).node
    except CompletionError:
        return None


@dataclass(frozen=True, slots=True)
class Lines:
    """Completions as JSON lines, in a seekable ``file`` open for reading, and the columns of the
    source that no field is read from."""

    file: IO[bytes]
    left_out: list[str] = field(default_factory=list)


@contextmanager
def opened(source: Path, mapped: Sequence[str] = ()) -> Iterator[Lines]:
    """Open completions as JSON lines that can be read twice. Standard input (``-``), pipes and
    files in other formats are first copied to a temporary file. ``mapped`` are the options
    ``FIELD=NAME`` for columns with other names. Raises InputError if the source cannot be read."""
    columns = mapping_of(list(mapped))
    piped = is_piped(source)
    if piped and columns:
        raise InputError(f"--map: expected a file next to it, got {piped}")
    if source.is_file():
        require_known_format(source)
    if source.exists() and not piped and not is_plain(source, columns):
        with tempfile.TemporaryFile() as copy:
            left_out = write_lines(source, columns, copy)
            copy.seek(0)
            yield Lines(copy, left_out)
        return
    try:
        file = _copied(source) if piped or is_compressed(source) else source.open("rb")
    except FileNotFoundError:
        raise InputError(
            f"{source}: (file): {nowhere(source, 'a file or folder of completions')}"
        ) from None
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{source}: (file): expected a readable file, got {why}") from None
    with file:
        behind_mark(file)
        yield Lines(file)


def is_piped(source: Path) -> str:
    """Name a source that can be read only once, such as the shell's ``<(...)``; "" for any other
    source."""
    if str(source) == "-":
        return "standard input"
    return "a pipe" if source.exists() and not (source.is_file() or source.is_dir()) else ""


def _copied(source: Path) -> IO[bytes]:
    """Make a temporary copy of a source that is not seekable: standard input, a pipe or a
    compressed file."""
    with ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile())
        if str(source) == "-":
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            opened: IO[bytes] = source.open("rb") if is_piped(source) else unpacked(source)
            with opened:
                shutil.copyfileobj(opened, copy)
        copy.seek(0)
        stack.pop_all()
        return copy


def completions_of(source: Path, mapped: Sequence[str] = ()) -> list[Completion]:
    """Read all completions from any source that `opened` reads, in order, and print a notice of the
    columns left out. Raises InputError if the source cannot be read, or a row is malformed."""
    with opened(source, mapped) as lines:
        rows = Rows(lines.file, str(source))
        tell_left_out(source, lines.left_out)
        found = (rows[place].completion for place in range(len(rows)))
        return [completion for completion in found if completion is not None]
