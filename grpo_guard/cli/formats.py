"""Convert the files that trainers and other tools write to JSON lines, one completion per line.

The module reads Parquet, Hugging Face dataset folders, TRL's logged completions, verl and prime-rl
rollout dumps, and inspect_ai logs. Columns are renamed to the fields of `Completion`; columns that
match no field are left out and listed.
"""

import json
import shlex
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from grpo_guard.cli.file_rows import Row, first_row, is_rollout, kind_of, rows_of
from grpo_guard.core.arguments import is_finite, is_gap, number_text
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import InputError
from grpo_guard.core.naming import CALLED, FIELD_CALLED, near
from grpo_guard.core.quoting import visible
from grpo_guard.core.registry import with_remedy

_FIELDS: Final = (*Completion.__dataclass_fields__, "id")
_MOST_LISTED: Final = 12
"""Maximum number of columns or unknown fields listed in a message."""
_MOST_LEFT_OUT: Final = 1_000
"""Maximum number of unread columns to remember; a hostile file can have new columns in every
row."""
_DELIMITED: Final = {".csv": "", ".tsv": ", sep='\\t'"}
_CALLED: Final[Mapping[str, tuple[str, ...]]] = {**CALLED, "id": ("example_id",)}


def mapping_of(pairs: list[str]) -> dict[str, str]:
    """Parse ``--map FIELD=NAME`` options into a mapping from field to column. Raises InputError if
    an option is malformed, or its FIELD does not exist."""
    found: dict[str, str] = {}
    for one in pairs:
        field, equals, column = one.partition("=")
        if any(part.partition("=")[0].strip() in _FIELDS for part in column.split(",")[1:]):
            raise InputError(
                f"--map: expected one FIELD=NAME, got {one!r:.80}; repeat the option: "
                + " ".join(f"--map {shlex.quote(visible(part.strip()))}" for part in one.split(","))
            )
        if not equals or not column:
            raise InputError(f"--map: expected FIELD=NAME such as text=completion, got {one!r:.80}")
        if field not in _FIELDS:
            nearest = [FIELD_CALLED[field]] if field in FIELD_CALLED else near(_FIELDS, field)
            if column in _FIELDS:
                hint = f"; did you mean {column}={field}?"
            else:
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise InputError(
                f"--map: expected a field of {', '.join(_FIELDS)}, got {field!r:.80}{hint}"
            )
        found[field] = column
    return found


def is_plain(source: Path, mapped: Mapping[str, str]) -> bool:
    """Whether a file is JSON lines with the fields of `Completion`, which need no conversion."""
    if source.is_dir() or mapped or kind_of(source) != ".jsonl":
        return False
    first = first_row(source)
    return first is None or not is_rollout(first)


def require_known_format(source: Path) -> None:
    """Refuse CSV and TSV files, which have no types and in which one text can span many lines.
    Raises InputError with code to convert the file."""
    separator = _DELIMITED.get(source.suffix.lower())
    if separator is not None:
        kind, better = source.suffix[1:].upper(), source.with_suffix(".parquet")
        raise InputError(
            f"{source}: (file): expected JSON lines or Parquet, got {kind}, which is not read; "
            f"convert it: pandas.read_csv({str(source)!r}{separator}).to_parquet({str(better)!r})"
        )


def write_lines(source: Path, mapped: Mapping[str, str], into: IO[bytes]) -> list[str]:
    """Write the completions of a file or folder as JSON lines, in their original order, and return
    the columns that no field was read from. Raises InputError if the source cannot be read, its
    format is unknown, or a column is missing."""
    left_out: dict[str, None] = {}
    try:
        for place, row in rows_of(source):
            found, unread = _fields(place, row, mapped)
            into.write(json.dumps(found, default=str).encode() + b"\n")
            if len(left_out) < _MOST_LEFT_OUT:
                left_out.update(dict.fromkeys(unread))
    except ModuleNotFoundError as error:
        raise InputError(f"{source}: {with_remedy(error)}") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InputError(f"{source}: (file): expected a readable file, got {why:.200}") from None
    return list(left_out)


def listed(names: Iterable[str]) -> str:
    """List column names in a message: escaped, because a sender may have chosen them, and limited
    in number."""
    found = list(names)
    more = len(found) - _MOST_LISTED
    shortened = [visible(name[:40]) for name in found[:_MOST_LISTED]]
    return ", ".join(shortened) + (f" and {more:,} more" if more > 0 else "")


def require_fields(row: Row) -> None:
    """Refuse a JSON line that has fields unknown to `Completion`, reporting all of them at once,
    with the ``--map`` options that read them: an unknown field could be a misspelt one, which must
    not be treated as missing."""
    unknown = [name for name in row if name not in _FIELDS]
    if not unknown:
        return
    if {"index", "outcome"} <= row.keys():
        raise InputError("outcome: expected completions, got verdicts; verify --table counts them")
    required = [field for field in ("prompt", "text") if field not in row]
    meant = _guesses(_FIELDS, unknown, surely=bool(required))
    if "text" in required:
        meant = _with_answer_as_text(meant, row)
    instead = "".join(f"{field!r} in place of {listed([name])}, " for field, name in meant.items())
    if len(meant) == len(unknown) == 1:
        instead = f"{next(iter(meant))!r} in its place, "
    got = "an unknown field" if len(unknown) == 1 else f"{len(unknown)} unknown fields"
    named = dict.fromkeys(required, "COLUMN") | {f: c for f, c in meant.items() if f not in row}
    reads = "reads other names and leaves" if named else "leaves"
    raise InputError(
        f"{listed(unknown)}: expected {instead}one of {', '.join(_FIELDS)}, got {got}; "
        f"{_options(named or {'text': 'text'})} {reads} out what is unknown"
    )


def _options(mapped: Mapping[str, str]) -> str:
    """Format ``--map`` options as typed in a shell."""
    return " ".join(f"--map {field}={shlex.quote(visible(c[:80]))}" for field, c in mapped.items())


def _guesses(
    fields: Iterable[str], columns: Iterable[str], *, surely: bool = False
) -> dict[str, str]:
    """Guess which column holds each field, by the most similar name of any field. ``surely``
    accepts merely similar names only for prompt and text: if these are missing, "ask" is more
    likely the prompt than a misspelt "task"."""
    called = {name: f for f in reversed(_FIELDS) for name in (f, *_CALLED.get(f, ()))}
    wanted, found = set(fields), dict[str, str]()
    names = [str(column)[:80] for column in columns][:64]
    for column in sorted(names, key=lambda column: column not in called):
        field = called.get(column)
        if field is None and (nearest := near(called, column)):
            field = called[nearest[0]]
            if surely and field not in ("prompt", "text"):
                continue
        if field in wanted:
            found.setdefault(field, column)
    return found


def _with_answer_as_text(meant: dict[str, str], row: Row) -> dict[str, str]:
    """Guess that a column ``answer`` holds the missing text: next to a text it is a reference."""
    if "text" in meant or "answer" not in row:
        return meant
    others = {field: column for field, column in meant.items() if column != "answer"}
    return {**others, "text": "answer"}


def _fields(place: str, row: Row, mapped: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return a row's values by field, and the columns that are not read."""
    taken = set(mapped.values())
    columns = {field: mapped.get(field) or _column(field, row, taken) for field in _FIELDS}
    read = {field: column for field, column in columns.items() if column in row}
    unread = [column for column in row if column not in read.values()]
    missing = {field: mapped[field] for field in mapped if field not in read}
    missing |= {field: field for field in ("prompt", "text") if columns[field] is None}
    if missing:
        raise _missing(place, missing, row, unread, mapped)
    found = {f: _value(f, row[c]) for f, c in read.items() if c and not _no_value(f, row[c])}
    for field in ("prompt", "text"):
        if field not in found:
            raise InputError(f"{place}: {columns[field]}: expected a value in each row, got null")
    return found, unread


def _missing(
    place: str,
    missing: Mapping[str, str],
    row: Row,
    unread: list[str],
    mapped: Mapping[str, str],
) -> InputError:
    """Build the error for all columns missing from a row, with the options that would name them."""
    several = len(missing) > 1
    expected = "columns of these names" if several else "a column of this name"
    meant = _guesses(missing, unread)
    if "text" in missing:
        meant = _with_answer_as_text(meant, row)
    for field in missing.keys() & mapped.keys():  # a misspelt column
        if nearest := near(list(map(str, unread)), mapped[field]):
            meant = {**meant, field: nearest[0]}
    options = {
        f: meant.get(f, "COLUMN") if f in missing else mapped[f] for f in (*missing, *mapped)
    }
    return InputError(
        f"{place}: {listed(missing.values())}: expected {expected}, got {listed(row)}; name "
        f"{'them' if several else 'it'}: {_options(options)}"
    )


def _column(field: str, row: Row, taken: set[str]) -> str | None:
    names = (field, *_CALLED.get(field, ()))
    return next((name for name in names if name in row and name not in taken), None)


def _no_value(field: str, value: Any) -> bool:
    return value is None or (field not in ("prompt", "text") and is_gap(value))


def _value(field: str, value: Any) -> Any:
    if field == "text" and isinstance(value, list):
        return "\n".join(filter(None, map(_text_of, value)))
    if field == "prompt" and isinstance(value, list):
        return [_message(message) for message in value]
    if field in ("reference", "node", "task") and isinstance(value, list):
        return json.dumps(value)
    if field == "task" and is_finite(value):
        return json.dumps(value)
    if field == "id" and not isinstance(value, int):
        return (number_text(value) or str(value))[:200]
    return value


def _text_of(message: Any) -> str:
    """Return the text of a chat message, or "" if the message is not the assistant's."""
    if isinstance(message, str):
        return message
    if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
        return ""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    return content if isinstance(content, str) else ""


def _message(message: Any) -> Any:
    """Reduce a chat message to role and content: logs add ids and sources, and Arrow adds empty
    fields."""
    if not isinstance(message, dict):
        return message
    return {key: message[key] for key in ("role", "content") if message.get(key) is not None}
