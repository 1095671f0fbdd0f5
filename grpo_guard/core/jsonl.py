"""Read untrusted JSON, checking its size before parsing, with errors that name the location."""

import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from grpo_guard.core.arguments import is_gap, whole_number
from grpo_guard.core.completion import Completion, CompletionError, shown

# One line is one completion; a file without line breaks must not fill memory.
MAX_LINE_BYTES = 16 * 1024 * 1024
# Parsing can turn three bytes into a 64-byte list, and seven into a dict entry. So input may hold
# one value per 16 bytes, with a list or object counting as four. A token id and its log-prob take
# about 26 bytes together.
BYTES_PER_VALUE = 16
LIST_VALUES = 4
MAX_DEPTH = 100
LONGEST_ID = 200
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class InputError(ValueError):
    """Bad input; the message reads ``FILE:LINE: field: expected ..., got ...``."""


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each non-empty line of a file. Raises InputError if the file
    cannot be read, or a line is not a JSON object."""
    try:
        with path.open("rb") as lines:
            yield from objects_of(lines, path)
    except OSError as error:
        raise InputError(
            f"{path}: (file): expected a readable file, got {error.strerror}"
        ) from None


def objects_of(lines: IO[bytes], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Like `read_objects`, but for a file that is already open; errors quote ``path``."""
    number = 0
    while line := lines.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not line.isspace():
            try:
                yield number, parse_object(line, MAX_LINE_BYTES)
            except InputError as error:
                raise InputError(f"{path}:{number}: (line): {error}") from None


def read_completions(path: Path) -> list[Completion]:
    """Read all completions of IN.jsonl, in order, ignoring each row's ``id``. A malformed line
    raises InputError, so that nothing is scored before the whole file is known to be readable."""
    completions = []
    for number, data in read_objects(path):
        try:
            row_id(data.pop("id", None))
            completions.append(Completion.from_dict(data, also=("id",)))
        except CompletionError as error:
            raise InputError(f"{path}:{number}: {error.field}: {error.problem}") from None
    return completions


def row_id(value: Any) -> str | int | None:
    """Return the sender's own id of a row: an integer, a short string or None. Anything else raises
    CompletionError."""
    if value is None or is_gap(value):
        return None
    if (number := whole_number(value)) is not None:
        return number
    if isinstance(value, str) and len(value) <= LONGEST_ID:
        return value
    raise CompletionError("id", f"an integer or at most {LONGEST_ID} characters", value)


def parse_object(text: bytes, most: int) -> dict[str, Any]:
    """Parse a JSON object from UTF-8 text of at most ``most`` bytes, which also limits the number
    of values. Raises InputError if the text is not such an object; the message says what was
    expected and, briefly, what was found."""
    if len(text) > most:
        raise InputError(f"expected at most {most} bytes, got more")
    _check_size(text, max(most // BYTES_PER_VALUE, 1024))
    try:
        data = _DECODER.decode(text.decode("utf-8"))
    except InputError:
        raise
    except UnicodeDecodeError as error:
        problem = f"UTF-8 text, got byte {text[error.start]:#x} at offset {error.start}"
    except RecursionError:
        problem = "a JSON object, got one nested too deeply"
    except json.JSONDecodeError as error:
        # A line that ends too early ends with its line break, which the parser counts as a line.
        where = f"character {error.pos + 1}" if error.pos < len(error.doc.rstrip()) else "its end"
        problem = f"a JSON object, got invalid JSON ({error.msg} at {where})"
    except ValueError as error:  # integers with too many digits
        problem = f"a JSON object, got invalid JSON ({error!s:.200})"
    else:
        if isinstance(data, dict):
            return data
        problem = f"a JSON object, got {type(data).__name__}"
    raise InputError(f"expected {problem}")


def _check_size(text: bytes, most: int) -> None:
    """Check the number of values and the nesting depth without parsing, using memory proportional
    to the text.

    Characters inside strings do not count: a completion's author writes them, and must not be able
    to get the whole request refused. The counts are exact up to the first invalid JSON, where
    parsing would stop.
    """
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    strings = bare.count(b'"') // 2
    if strings <= most:  # each piece of the split below takes memory
        bare = b"".join(bare.split(b'"')[::2])
        brackets = bare.translate(None, _NOT_BRACKETS)
        opened = brackets.count(b"[") + brackets.count(b"{")
        if len(brackets) > 2 * opened:
            raise InputError("expected a JSON object, got invalid JSON (unmatched brackets)")
        if bare.count(b",") + bare.count(b":") + LIST_VALUES * opened <= most:
            if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
                raise InputError("expected a JSON object, got one nested too deeply")
            return
    raise InputError(
        f"expected at most {most} values (a list or object is {LIST_VALUES}), got more"
    )


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its pairs, and refuse it if a name occurs twice: parsers differ in which
    value they keep, so another program might have checked a different value from the one verified
    here.
    """
    data = dict(pairs)
    if len(data) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InputError(f"expected each name once in an object, got {shown(name)} twice")
            seen.add(name)
    return data


_DECODER = json.JSONDecoder(object_pairs_hook=_names_once)  # costs as much as parsing a body
