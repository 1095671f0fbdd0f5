"""The command ``grpo-guard verify``."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stdout,
)
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeAlias

import typer

from grpo_guard.cli.inputs import Mapped, bad_input, require_folder_of, tell_left_out, writing
from grpo_guard.cli.terminal import echo, exit_with, terminal

if TYPE_CHECKING:
    from grpo_guard.cli.rows import Row, Rows
    from grpo_guard.cli.summary import Summary
    from grpo_guard.core.completion import Completion
    from grpo_guard.core.verdict import Verdict
    from grpo_guard.guard import Guard

BATCH = 64


class Engine(enum.StrEnum):
    """Where rules read texts: in local processes or on Ray."""

    local = "local"
    ray = "ray"


class Format(enum.StrEnum):
    """Format of the summary."""

    table = "table"
    json = "json"


Source: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="IN",
        help="JSON lines with prompt and text (- is stdin), Parquet, or a folder of a trainer.",
    ),
]
Table: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--table",
        help="Print verdicts by cause and by node, with an example each. Without --config, "
        "IN holds verdicts: a guard's log, or what this command wrote.",
    ),
]


WorkersOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        help="Processes that read texts, or actors of --engine ray. By default as many as the "
        "guard file says; if it says nothing, half of the cores for large files. 0 starts none.",
    ),
]


ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The guard, as YAML. Required, except by --table of verdicts."
    ),
]
OutOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="One verdict per line, same order; - is stdout. Required with --config."
    ),
]


def verify(
    source: Source,
    config: ConfigOption = None,
    out: OutOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue after the verdicts already in OUT.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Reject malformed lines instead of stopping.")
    ] = False,
    mapped: Mapped = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="Where rules read texts: here, or on Ray.")
    ] = Engine.local,
    workers: WorkersOption = None,
    summary: Annotated[
        Format, typer.Option("--format", help="Format of the summary.")
    ] = Format.table,
    table: Table = False,
) -> None:
    """Verify completions from a file, and record the verdicts in the guard's ledger if it has one.

    Rules read texts in --workers processes or, with --engine ray, in actors on
    a cluster (RAY_ADDRESS) or on this machine. Verdicts are the same.

    Verdicts are written to OUT during the run. After Ctrl-C, the same command
    with --resume continues; prompts that were only partly done are verified,
    and recorded in the ledger, again.

    Exit 0 even if completions are rejected, 2 on bad input, 3 if the share of
    abstentions among completions that are not rejected exceeds the guard's
    max_abstain_rate.
    """
    if table and summary is Format.json:
        raise typer.BadParameter(
            "expected --format table with it, got json, whose summary has these counts already",
            param_hint="'--table'",
        )
    if table and config is None:
        from grpo_guard.cli.verdict_table import table_of

        with bad_input():
            echo(table_of(source).text())
        return
    config, out = _required(config, "--config"), _required(out, "--out")
    _require_no_page(out)
    counted, most_abstained = _verify_file(
        source, config, out, mapped=mapped or (), resume=resume, keep_going=keep_going,
        guard_of=partial(_guard, config, engine, workers, source), table=table,
    )  # fmt: skip
    echo(getattr(counted, f"as_{summary.value}")(str(out)), err=str(out) == "-")
    if complaint := counted.too_many_abstained(most_abstained):
        exit_with(complaint, 3)


def _require_no_page(out: Path) -> None:
    """Raise BadParameter if ``--out`` names an HTML page, which `view` makes from the verdicts."""
    if out.suffix.lower() in (".html", ".htm"):
        raise typer.BadParameter(
            f"expected a file for verdicts such as {out.with_suffix('.jsonl')}, got {out}; "
            "grpo-guard view makes a page of them",
            param_hint="'--out'",
        )


def _verify_file(
    source: Path,
    config: Path,
    out: Path,
    *,
    mapped: Sequence[str],
    resume: bool,
    keep_going: bool,
    guard_of: Callable[[], AbstractContextManager[Guard]],
    table: bool,
) -> tuple[Summary, float]:
    """Verify a file and write the verdicts to ``out``; return the counts and the guard's
    ``max_abstain_rate``."""
    from grpo_guard.cli.rows import Rows, opened, require_rows
    from grpo_guard.cli.summary import Summary, idle_notes
    from grpo_guard.cli.verdict_table import VerdictTable
    from grpo_guard.core.files import growing, require_other

    with ExitStack() as stack:
        with bad_input():
            require_other(out, source, config)
            require_folder_of(out)
            lines = stack.enter_context(opened(source, mapped))
            rows = Rows(lines.file, str(source), keep_going=keep_going)
            require_rows(rows, source)
            tell_left_out(source, lines.left_out)
            done = _done(out, rows, source) if resume else 0
            written = nullcontext(sys.stdout) if str(out) == "-" else growing(out, done > 0)
            guard = stack.enter_context(guard_of())
        counted = Summary(len(rows), done, VerdictTable() if table else None)
        counted.notes = idle_notes(guard, rows, source, lines.left_out)
        for note in counted.notes:
            echo(f"warning: {note}", err=True)
        try:
            with writing(out):
                _verify_all(rows, guard, written, done, counted, _input(source, mapped, out))
        except KeyboardInterrupt:
            exit_with(f"stopped; {out} holds the first verdicts, --resume continues", 130)
    return counted, guard.policy.max_abstain_rate


def _required(given: Path | None, name: str) -> Path:
    if given is None:
        config = name == "--config"
        hint = "; grpo-guard init writes a guard file" if config else "; - is standard output"
        raise typer.BadParameter(f"expected {name} FILE, got none{hint}", param_hint=f"'{name}'")
    return given


@contextmanager
def _guard(config: Path, engine: Engine, workers: int | None, source: Path) -> Iterator[Guard]:
    """Build a guard file's guard, with the processes or Ray actors in which its rules read texts;
    these end with the context. By default, a large source gets processes.

    Raises:
        ConfigError: the guard file is wrong, Ray is missing or its cluster is full, or nothing in
            the guard can run on Ray.
    """
    from grpo_guard.config import GuardConfig
    from grpo_guard.core.options import ConfigError

    # If a worker dies, Ray reports it on standard output, where verdicts might be written.
    with redirect_stdout(sys.stderr):
        guard = GuardConfig.from_yaml(config).build()
        if guard.identity is not None:
            guard.identity.allow_any_order()
        if engine is Engine.local:
            _with_processes(guard, workers, source)
            try:
                yield guard
            finally:
                guard.workers.close()
            return
        from grpo_guard.server.distributed.ahead import on_ray

        guard.workers = 0
        try:
            there = on_ray(guard, workers=workers or None)
        except (ModuleNotFoundError, ConnectionError, ValueError) as error:
            raise ConfigError(str(error)) from None
        try:
            yield guard
        finally:
            there.close()


def _with_processes(guard: Guard, workers: int | None, source: Path) -> None:
    """Set the number of processes that read texts, once per file because batches are small. Raises
    ConfigError if it is refused, for example because the guard's policy rewards abstentions."""
    from grpo_guard.core.options import ConfigError
    from grpo_guard.guard.workers.texts import WORTH_CHARACTERS

    number = guard.workers.number if workers is None else workers
    if number is None:
        large = source.is_dir() or (source.is_file() and source.stat().st_size > WORTH_CHARACTERS)
        number = guard.workers.count if large and not guard.policy.pays_abstentions else 0
    try:
        guard.workers = number
    except ValueError as error:
        raise ConfigError(f"--workers: {error}") from None


def _input(source: Path, mapped: Sequence[str], out: Path) -> dict[str, Any] | None:
    """Describe the verified file, for ``grpo-guard view`` to find it; None for a pipe. The
    description is written with the first verdict."""
    from grpo_guard.cli.rows import is_piped

    if is_piped(source):
        return None
    folder = Path() if str(out) == "-" else out.parent
    return {"file": os.path.relpath(source, folder), "map": list(mapped)}


def _verify_all(
    rows: Rows,
    guard: Guard,
    into: AbstractContextManager[TextIO],
    done: int,
    counted: Summary,
    source: dict[str, Any] | None,
) -> None:
    """Verify batch by batch, writing each verdict as soon as all preceding ones are written."""
    from grpo_guard.cli.in_order import InOrder
    from grpo_guard.cli.progress import progress
    from grpo_guard.cli.row_groups import whole_groups
    from grpo_guard.server.distributed.ahead import judged

    def batches() -> Iterator[tuple[list[tuple[int, Row]], list[Completion]]]:
        for places in whole_groups(rows.groups, BATCH, rows.rounds):
            if max(places) >= done:
                batch = [(place, rows[place]) for place in places]
                found = [row.completion for _, row in batch]
                yield batch, [completion for completion in found if completion is not None]

    with (
        into as file,
        InOrder(file, first=done) as written,
        progress(terminal(stderr=True), len(rows), done) as step,
    ):
        for batch, completions, verdicts in judged(guard, batches()):
            judged_rows = _with_malformed(batch, completions, verdicts)
            for (place, sent), (row, verdict) in zip(batch, judged_rows, strict=True):
                if place >= done:
                    counted.add(row, verdict)
                    written.put(place, _line(place, sent, row, verdict, source))
                    step()


def _with_malformed(
    batch: list[tuple[int, Row]], completions: list[Completion], verdicts: list[Verdict]
) -> Iterator[tuple[Row, Verdict]]:
    """Yield each row as judged, under the node that really sent it, with the verdict. A line
    without a completion is rejected, because its sender caused the problem."""
    from dataclasses import replace

    from grpo_guard.core.verdict import Cause, reject

    pairs = zip(completions, verdicts, strict=True)
    for _, row in batch:
        if row.completion is None:
            yield row, reject("input", Cause.MALFORMED, row.problem)
        else:
            completion, verdict = next(pairs)
            yield replace(row, completion=completion), verdict


def _line(place: int, sent: Row, row: Row, verdict: Verdict, source: dict[str, Any] | None) -> str:
    """Format one line of the output about a row, as it was ``sent`` and as it was judged; the first
    line describes the verified file (``source``, see `_input`)."""
    import json

    from grpo_guard.cli.rows import digest_of

    line = {
        "index": place,
        "id": row.id,
        "node": row.node,
        "digest": None if sent.completion is None else digest_of(sent.completion),
        **verdict.to_dict(),
    }
    if place == 0 and source is not None:
        line["input"] = source
    return json.dumps(line) + "\n"


def _done(out: Path, rows: Rows, source: Path) -> int:
    """Return the number of verdicts in a file, after cutting off a half-written last line. Raises
    InputError if the file holds anything else, more verdicts than there are rows, or verdicts on
    other rows."""
    from grpo_guard.cli.rows import digest_of
    from grpo_guard.core.jsonl import InputError, read_objects

    if not out.exists():
        return 0
    if out.is_symlink() or not out.is_file():
        raise InputError(f"{out}: (file): expected a file to continue, got none")
    with out.open("rb+") as file:
        whole = 0
        for line in file:
            whole += len(line) if line.endswith(b"\n") else 0
        file.truncate(whole)
    count, total = 0, len(rows)
    for number, data in read_objects(out):
        if data.get("index") != count or count >= total:
            raise InputError(f"{out}:{number}: index: expected {count} of {total} rows in order")
        known, row = data.get("digest"), rows[count]
        if known and (row.completion is None or known != digest_of(row.completion)):
            raise InputError(
                f"{out}:{number}: expected a verdict on row {count} of {source}, got one on "
                "another text, prompt, node or round; --resume goes on with the file that was "
                "begun, in the same order"
            )
        count += 1
    return count
