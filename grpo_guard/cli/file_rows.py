"""Read the rows of files that trainers and other tools write, one at a time and in order."""

import gzip
import io
import re
import shlex
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from grpo_guard.core.jsonl import MAX_LINE_BYTES, InputError, objects_of, parse_object

Row = Mapping[str, Any]

MAX_LOG_BYTES: Final = 1024 * MAX_LINE_BYTES // 16
"""Maximum size in bytes of a log that is a single JSON object."""
MOST_TIMES: Final = 100
"""A compressed file may unpack to at most this many times its size."""
ALWAYS_UNPACKED: Final = 4 * MAX_LINE_BYTES
"""Any compressed file may unpack to this many bytes, however small the file is."""
_IN_FOLDERS: Final = (".parquet", ".jsonl", ".jsonl.gz", ".eval")
_GZIP: Final = b"\x1f\x8b"
_UNPACK: Final = "unpack it, or name the file in it"
_SAVE: Final = "save the prompt and text of each completion as JSON lines"
# First bytes of a file -> its format, and the remedy.
_OTHERS: Final[Mapping[bytes, tuple[str, str]]] = {
    b"BZh": ("bzip2", "unpack it: bunzip2 FILE"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unpack it: unzstd FILE"),
    b"\xfd7zXZ": ("xz", "unpack it: unxz FILE"),
    b"PK\x03\x04": ("an archive (zip, .xlsx, .pt or .npz)", _UNPACK),
    b"\x80": ("a pickle", _SAVE),
    b"\x93NUMPY": ("a NumPy array", _SAVE),
    b"\xff\xfe": ("UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    b"\xfe\xff": ("UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    b"SQLite format": ("a database", _SAVE),
}


def rows_of(source: Path) -> Iterator[tuple[str, Row]]:
    """Yield (place, row) for each row of a file or folder in any supported format."""
    if source.is_dir():
        yield from _of_folder(source)
        return
    read = {
        ".parquet": _of_parquet,
        ".arrow": _of_arrow,
        ".eval": _of_eval,
        ".json": _of_inspect,
        ".jsonl": _of_lines,
    }
    yield from read[kind_of(source)](source)


def kind_of(source: Path) -> str:
    """Return the suffix that fits a file's contents, whatever the file is called: a Parquet file
    can have any name, and JSON lines can be compressed or in a ``.json`` file. Raises InputError if
    the file's format is known but not supported, or the file cannot be read."""
    try:
        with source.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        why = error.strerror
        raise InputError(f"{source}: (file): expected a readable file, got {why}") from None
    if source.suffix in (".yaml", ".yml"):
        raise InputError(f"{source}: (file): expected completions, got YAML; a guard is -c FILE")
    if start.startswith(b"PAR1"):
        return ".parquet"
    if source.suffix in (".arrow", ".eval", ".parquet"):
        return source.suffix
    for magic, (what, instead) in _OTHERS.items():
        if start.startswith(magic):
            raise InputError(
                f"{source}: (file): expected JSON lines or Parquet, got {what}; "
                f"{instead.replace('FILE', shlex.quote(str(source)))}"
            )
    if source.suffix != ".json":
        return ".jsonl"
    first = first_row(source)  # an inspect_ai log: several lines, or one with samples
    return ".json" if first is None or "samples" in first else ".jsonl"


def _of_folder(source: Path) -> Iterator[tuple[str, Row]]:
    if (source / "state.json").is_file():
        yield from _of_dataset(source)
        return
    if (source / "dataset_dict.json").is_file():
        splits = sorted(p.name for p in source.iterdir() if (p / "state.json").is_file())
        if len(splits) != 1:
            raise InputError(
                f"{source}: expected one split, got {', '.join(splits)}; name its folder"
            )
        yield from _of_dataset(source / splits[0])
        return
    found = {end: sorted(source.rglob(f"*{end}"), key=_numbered) for end in _IN_FOLDERS}
    kinds = [end for end, files in found.items() if files]
    if len(kinds) > 1:
        got = " and ".join(f"{end} ({found[end][0].relative_to(source)})" for end in kinds)
        raise InputError(f"{source}: expected files of one kind, got {got}; name one of them")
    if not kinds:
        raise InputError(
            f"{source}: expected a dataset's folder, or one with {', '.join(_IN_FOLDERS[:3])} or "
            f"{_IN_FOLDERS[3]} files, got none"
        )
    for file in found[kinds[0]]:
        yield from rows_of(file)


def _numbered(path: Path) -> tuple[Any, ...]:
    """Sort key that respects the numbers in a name: 9.jsonl comes before 10.jsonl."""
    parts = re.split(r"(\d{1,18})", str(path))
    return tuple((int(p), "") if p.isdigit() else (0, p) for p in parts)


def _of_parquet(source: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        batches = pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=64)
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"{source}:{number}", row
    except pyarrow.ArrowException as error:
        raise InputError(f"{source}: (file): expected Parquet, got {error!s:.200}") from None


def _of_dataset(source: Path) -> Iterator[tuple[str, Row]]:
    state = _whole(source / "state.json")
    files = state.get("_data_files")
    names = [f.get("filename") for f in files] if isinstance(files, list) else []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{source / 'state.json'}: _data_files: expected names of files")
        yield from _of_arrow(source / name)


def _of_arrow(source: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow

    try:
        with pyarrow.memory_map(str(source)) as mapped, pyarrow.ipc.open_stream(mapped) as reader:
            parts = (batch.slice(at, 64) for batch in reader for at in range(0, len(batch), 64))
            rows = (row for part in parts for row in part.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"{source}:{number}", row
    except pyarrow.ArrowException as error:
        raise InputError(f"{source}: (file): expected Arrow, got {error!s:.200}") from None


def _of_lines(source: Path) -> Iterator[tuple[str, Row]]:
    with opened_lines(source) as lines:
        for number, row in objects_of(lines, source):
            yield f"{source}:{number}", row


def _of_eval(source: Path) -> Iterator[tuple[str, Row]]:
    """Read an inspect_ai log, which is an archive with one file per sample."""
    with zipfile.ZipFile(source) as archive:
        names = [n for n in archive.namelist() if n.startswith("samples/") and n.endswith(".json")]
        for name in sorted(names, key=lambda name: _numbered(Path(name))):
            with archive.open(name) as file:
                content = file.read(MAX_LINE_BYTES + 1)  # whatever size the archive claims
            try:
                sample = parse_object(content, MAX_LINE_BYTES)
            except InputError as error:
                raise InputError(f"{source}:{name}: {error}") from None
            yield f"{source}:{name}", _sample(sample)


def _of_inspect(source: Path) -> Iterator[tuple[str, Row]]:
    samples = _whole(source).get("samples")
    if not isinstance(samples, list):
        raise InputError(f"{source}: samples: expected an inspect_ai log with samples, got none")
    for number, sample in enumerate(samples, 1):
        if not isinstance(sample, dict):
            raise InputError(f"{source}: samples: expected objects, got {type(sample).__name__}")
        yield f"{source}:{number}", _sample(sample)


def _sample(sample: Row) -> Row:
    output = sample.get("output")
    text: Any = output.get("completion") if isinstance(output, dict) else None
    if not isinstance(text, str) and isinstance(output, dict):
        choices = output.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        text = [first.get("message")] if isinstance(first, dict) else None
    target = sample.get("target")
    return {
        "id": f"{sample.get('id')}:{sample.get('epoch', 1)}",
        "prompt": sample.get("input"),
        "text": text,
        "reference": target if isinstance(target, str) else None,
    }


def _whole(source: Path) -> dict[str, Any]:
    with source.open("rb") as file:
        content = file.read(MAX_LOG_BYTES + 1).removeprefix(BOM_UTF8)
    try:
        return parse_object(content, MAX_LOG_BYTES)
    except InputError as error:
        raise InputError(f"{source}: (file): {error}{list_hint(content, source)}") from None


def list_hint(start: bytes, source: object) -> str:
    """Return the remedy for a file that is a single JSON list; "" for any other file."""
    if not start.lstrip().startswith(b"["):
        return ""
    return f"; write one object a line: jq -c '.[]' {shlex.quote(str(source))}"


def first_row(source: Path) -> Row | None:
    """Return the object in the first line of a file; None if that line is not an object, which
    `_of_lines` reports later."""
    try:
        with opened_lines(source) as file:
            return parse_object(file.readline(MAX_LINE_BYTES + 1), MAX_LINE_BYTES)
    except (OSError, EOFError, InputError):
        return None


def is_compressed(source: Path) -> bool:
    """Whether a file is gzip-compressed, whatever its name."""
    with source.open("rb") as file:
        return file.read(2) == _GZIP


def unpacked(source: Path) -> io.BufferedReader:
    """Open the unpacked contents of a gzip-compressed file."""
    return io.BufferedReader(_Unpacked(source))


class _Unpacked(io.RawIOBase):
    """Reads a compressed file up to the limits `MOST_TIMES` and `ALWAYS_UNPACKED`, because a small
    file could unpack to gigabytes. Raises InputError if it unpacks to more, or is damaged."""

    def __init__(self, source: Path) -> None:
        self._source, self._file = source, gzip.GzipFile(source, "rb")
        self._most = max(ALWAYS_UNPACKED, MOST_TIMES * source.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        try:
            read = self._file.readinto(into)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"{self._source}: (file): expected a readable file, got {why}"
            ) from None
        if self._file.tell() > self._most:
            raise InputError(
                f"{self._source}: (file): expected at most {MOST_TIMES} times as much when "
                f"unpacked, got more; unpack it: gunzip -k {shlex.quote(str(self._source))}"
            )
        return read

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def opened_lines(source: Path) -> Iterator[IO[bytes]]:
    """Open a file of lines, decompressed if necessary, and skip its byte order mark."""
    with unpacked(source) if is_compressed(source) else source.open("rb") as file:
        behind_mark(file)
        yield file


def behind_mark(file: IO[bytes]) -> None:
    """Skip the byte order mark at the start of a file, if there is one."""
    if file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)


def is_rollout(row: Row) -> bool:
    """Whether a row comes from a verl or prime-rl dump. A row with the fields of `Completion` never
    looks like one."""
    verl = "input" in row and "output" in row and "text" not in row
    return verl or isinstance(row.get("completion"), list)
