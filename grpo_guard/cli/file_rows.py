"""Read the rows of files that trainers and other tools write: one at a time, in their order."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.jsonl import MAX_LINE_BYTES, InputError, parse_object

Row = Mapping[str, Any]

MAX_LOG_BYTES: Final = 1024 * MAX_LINE_BYTES // 16
"""Largest size in bytes of a log that is one JSON object."""


def rows_of(source: Path) -> Iterator[tuple[str, Row]]:
    """(place, row) of whatever ``source`` is."""
    if source.is_dir():
        yield from _of_folder(source)
    elif source.suffix == ".parquet":
        yield from _of_parquet(source)
    elif source.suffix == ".arrow":
        yield from _of_arrow(source)
    elif source.suffix == ".eval":
        yield from _of_eval(source)
    elif source.suffix == ".json":
        yield from _of_inspect(source, _whole(source))
    else:
        yield from _of_lines(source)


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
    for suffix in (".parquet", ".jsonl", ".eval"):
        found = sorted(source.rglob(f"*{suffix}"), key=_numbered)
        for file in found:
            yield from rows_of(file)
        if found:
            return
    raise InputError(
        f"{source}: expected a dataset's folder, or one with .parquet, .jsonl or .eval files, "
        "got none"
    )


def _numbered(path: Path) -> tuple[Any, ...]:
    """Sort key by the numbers in a name: 9.jsonl comes before 10.jsonl."""
    parts = re.split(r"(\d{1,18})", str(path))
    return tuple((int(p), "") if p.isdigit() else (0, p) for p in parts)


def _of_parquet(source: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source)
        number = 0
        for batch in file.iter_batches(batch_size=64):
            for row in batch.to_pylist():
                number += 1
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
            number = 0
            for batch in reader:
                for at in range(0, batch.num_rows, 64):
                    for row in batch.slice(at, 64).to_pylist():
                        number += 1
                        yield f"{source}:{number}", row
    except pyarrow.ArrowException as error:
        raise InputError(f"{source}: (file): expected Arrow, got {error!s:.200}") from None


def _of_lines(source: Path) -> Iterator[tuple[str, Row]]:
    with source.open("rb") as lines:
        number = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.isspace():
                try:
                    yield f"{source}:{number}", parse_object(line, MAX_LINE_BYTES)
                except InputError as error:
                    raise InputError(f"{source}:{number}: (line): {error}") from None


def _of_eval(source: Path) -> Iterator[tuple[str, Row]]:
    """A log of inspect_ai: an archive with a file for each sample."""
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


def _of_inspect(source: Path, log: Row) -> Iterator[tuple[str, Row]]:
    samples = log.get("samples")
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
        content = file.read(MAX_LOG_BYTES + 1)
    try:
        return parse_object(content, MAX_LOG_BYTES)
    except InputError as error:
        raise InputError(f"{source}: (file): {error}") from None


def first_row(source: Path) -> Row | None:
    """The first line's object; None if it is not an object, which `_of_lines` reports."""
    try:
        with source.open("rb") as file:
            return parse_object(file.readline(MAX_LINE_BYTES + 1), MAX_LINE_BYTES)
    except (OSError, InputError):
        return None


def is_rollout(row: Row) -> bool:
    """Whether a line comes from a dump of verl or prime-rl. No `Completion` line looks like one."""
    verl = "input" in row and "output" in row and "text" not in row
    return verl or isinstance(row.get("completion"), list)
