"""``grpo-guard view``: verdicts in a browser, as one self-contained page.

Completions are hostile, so nothing in them may become markup: ``<``, ``>`` and ``&`` are escaped in
the JSON of the rows, the script adds texts only as text nodes, and the page's content security
policy allows no other script, no connection, no frame and no image.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from grpo_guard.cli.inputs import bad_input, require_folder_of, writing
from grpo_guard.cli.terminal import echo
from grpo_guard.cli.verdict_table import (
    VerdictTable,
    deciding,
    deciding_p_values,
    no_verdict,
    verdict_lines,
)
from grpo_guard.core.quoting import counted, shown
from grpo_guard.core.verdict import Outcome

if TYPE_CHECKING:
    from grpo_guard.cli.rows import Row

MOST_ROWS: Final = 5_000
MOST_TEXT: Final = 20_000
"""Maximum number of characters shown of a completion, so that a browser can open the page."""
_CONTEXT: Final = 2_000
_FIRST: Final = {"reject": 0, "abstain": 1, "accept": 2}


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows of a page, one mapping each, with the row's number in the file as ``index``; the
    number of rows that did not fit; the file that the texts come from, if any; a remark to print
    after the command; and a remark that the page makes about a guard's log."""

    rows: list[dict[str, Any]]
    left_out: int
    source: Path | None = None
    note: str = ""
    about: str = ""


def view(
    verdicts: Annotated[
        Path,
        typer.Argument(metavar="OUT.jsonl", help="What grpo-guard verify wrote, or a guard's log."),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--in", "-i", help="The completions that were verified. Default: what verify read."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: OUT.html.")
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="FIELD=NAME", help="As for grpo-guard verify. Default: as used there."
        ),
    ] = None,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Rows on the page; rejected ones come first.")
    ] = MOST_ROWS,
) -> None:
    """Write a page of verdicts, with filters, marked evidence and the nodes over rounds."""
    target = out or verdicts.with_suffix(".html")
    with bad_input():
        from grpo_guard.core.files import require_other

        require_folder_of(target)
        require_other(target, verdicts, *([source] if source else []))
        found = shown_rows(verdicts, source, mapped, most)
        if found.source:
            require_other(target, found.source)
    with writing(target):
        target.write_text(page(found, verdicts.name), encoding="utf-8")
    left = f"; {found.left_out:,} more rows did not fit (--most)" if found.left_out else ""
    echo(f"wrote {target}: {len(found.rows):,} rows{left}{found.note}")


def shown_rows(
    verdicts: Path, source: Path | None, mapped: list[str] | None, most: int = MOST_ROWS
) -> Shown:
    """Collect the rows for the page, at most ``most``, rejected rows first. If there are too many,
    accepted rows are dropped first.

    Args:
        verdicts: The file written by ``grpo-guard verify``, or a guard's log.
        source: The file of completions; None for the one named in the first verdict, if it still
            exists.
        mapped: ``FIELD=NAME`` for columns with other names; None for the mapping used when the file
            was verified.

    Raises:
        InputError: a file cannot be read or holds no verdict, or the two files do not belong
            together.
    """
    from grpo_guard.core.jsonl import InputError

    kept: list[dict[str, Any]] = []
    accepted: list[dict[str, Any]] = []
    total = 0
    known: dict[str, Any] = {}  # the first verdict describes the verified file
    for number, data in verdict_lines(verdicts, "view takes", "completions follow --in"):
        if total == 0 and _is_logged(data):
            return _of_log(verdicts, source, most)
        if "outcome" not in data or "index" not in data:
            raise InputError(
                f"{verdicts}:{number}: outcome: expected a line that grpo-guard verify or a "
                "guard's log wrote, got one without outcome and index"
                f"; {no_verdict(data, 'completions follow --in')}"
            )
        if total == 0:
            known = data["input"] if isinstance(data.get("input"), dict) else {}
        total += 1
        into = accepted if data["outcome"] == "accept" else kept
        if len(into) < most:
            into.append(_row(data))
    if not total:
        raise InputError(f"{verdicts}: (file): expected at least one verdict, got none")
    rows = [*kept, *accepted[: max(0, most - len(kept))]]
    rows.sort(key=_order)
    note = ""
    if source is None:
        source, note = _remembered(verdicts, known.get("file"))
    if source is not None:
        columns = [one for one in _list(known.get("map")) if isinstance(one, str)]
        chosen = columns if mapped is None and str(source) != "-" else mapped
        note = _add_texts(rows, total, verdicts, source, chosen or [])
    for row in rows:
        del row["digest"]
    return Shown(rows, total - len(rows), source, note)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return _FIRST.get(row["outcome"], 1), not isinstance(row["index"], int), row["index"]


def _is_logged(line: dict[str, Any]) -> bool:
    """Whether a line is from a guard's log: it then has no index, and counts what was accepted."""
    return "index" not in line and ("accepted" in line or {"outcome", "excerpt"} <= line.keys())


def _of_log(log: Path, source: Path | None, most: int) -> Shown:
    """Collect the rows of a guard's log. It only counts accepted completions, and holds an excerpt
    of each other one.

    Raises:
        InputError: a line is not from a log, or there are completions, which a log cannot name.
    """
    from grpo_guard.core.jsonl import InputError

    if source is not None:
        raise InputError(
            f"{log}: a guard's log has excerpts of its own, so it needs no --in; for whole texts, "
            "give --in with a file that grpo-guard verify wrote"
        )
    table = VerdictTable()
    rows: list[dict[str, Any]] = []
    for number, data in verdict_lines(log, "view takes", "completions follow --in"):
        if not _is_logged(data):
            raise InputError(f"{log}:{number}: expected a line of a guard's log, as above it")
        try:
            table.add_logged(data)
        except ValueError as error:
            raise InputError(f"{log}:{number}: {error}") from None
        if "accepted" not in data and len(rows) < most:
            rows.append(_logged_row(data | {"index": number}))
    accepted = table.outcomes[Outcome.ACCEPT]
    total = table.outcomes.total() - accepted
    about = (
        f"A guard's log. It only counts the completions that were accepted ({accepted:,}); of the "
        "others it holds the end of the prompt and an excerpt of the text. #N is the line."
    )
    rows.sort(key=_order)
    note = f"; {accepted:,} accepted ones are only counted, and texts are excerpts"
    return Shown(rows, total - len(rows), None, note, about)


def _logged_row(data: dict[str, Any]) -> dict[str, Any]:
    """Return the row for a line of a log. The log's p-value is that of the whole guard, so it is
    shown only if no member decided."""
    row = _row(data)
    del row["digest"]
    prompt, excerpt = data.get("prompt"), data.get("excerpt")
    return row | {
        "p": row["p"] if row["by"] == [str(data.get("verifier"))] else [],
        "round": data.get("round"),
        "text": str(excerpt or "")[:MOST_TEXT],
        **({} if prompt is None else {"prompt": str(prompt)[:_CONTEXT]}),
    }


def _remembered(verdicts: Path, file: Any) -> tuple[Path | None, str]:
    """Return the verified file if it still exists; otherwise None, with a note saying so."""
    none = "; without --in FILE it has no texts"
    if not isinstance(file, str):
        return None, none
    source = verdicts.parent / file
    if source.is_file() or source.is_dir():
        return source, ""
    return None, f"{none}, and {source}, which was verified, is not there"


def _row(data: dict[str, Any]) -> dict[str, Any]:
    found = [f for f in _list(data.get("findings")) if isinstance(f, dict)]
    by = list(deciding(data)) or [str(data.get("verifier"))]
    return {
        "index": data["index"],
        "digest": data.get("digest"),
        "id": data.get("id"),
        "node": data.get("node"),
        "outcome": str(data["outcome"]),
        "cause": str(data.get("cause")),
        "by": by[:8],
        "p": deciding_p_values(data)[:8],
        "findings": [
            {
                "kind": str(f.get("kind")),
                "message": str(f.get("message"))[:400],
                "span": _span(f.get("char_span")),
            }
            for f in found[:20]
        ],
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _span(value: Any) -> list[int] | None:
    two = isinstance(value, list) and len(value) == 2
    return value if two and all(isinstance(i, int) and i >= 0 for i in value) else None


def _add_texts(
    rows: list[dict[str, Any]], total: int, verdicts: Path, source: Path, mapped: list[str]
) -> str:
    """Add the prompt, text and round of each row from the verified file. Return a note if only part
    of the file has been verified, otherwise "". Raises InputError if a row is not the one that the
    verdict is about."""
    from grpo_guard.cli.rows import Rows, opened
    from grpo_guard.core.jsonl import InputError

    with opened(source, mapped) as lines:
        completions = Rows(lines.file, str(source), keep_going=True)
        have = len(completions)
        counts = f"{verdicts} has {counted(total, 'verdict')}, {source} {counted(have, 'row')}"
        if total > have or (total < have and any(row["digest"] is None for row in rows)):
            raise InputError(f"{counts}: is it the file that was verified?")
        for row in rows:
            at = row["index"]
            if not isinstance(at, int) or not 0 <= at < have:
                raise InputError(f"{source}: expected a row {at!r:.40}, got {have} rows")
            found = completions[at]
            if problem := _other(row, found):
                raise InputError(
                    f"{source}: row {at}: expected the row that {verdicts} is about, got "
                    f"{problem}; is it the file that was verified, in the same order?"
                )
            completion = found.completion
            if completion is not None:
                row["prompt"] = completion.prompt_text[:_CONTEXT]
                row["text"] = completion.text[:MOST_TEXT]
                row["cut"] = len(completion.text) > MOST_TEXT
                row["round"] = completion.round
    return f"; {counts}: the others are not verified yet" if total < have else ""


def _other(row: dict[str, Any], found: "Row") -> str | None:
    """Describe how a row of the file differs from the one a verdict is about; None if it does not.

    The node in a verdict can be a signer's key, so nodes are compared only if there is no digest.
    """
    from grpo_guard.cli.rows import digest_of

    def differs(name: str, there: Any) -> str | None:
        known = row[name] is not None and there is not None and row[name] != there
        return f"{name} {shown(there, 60)} in place of {shown(row[name], 60)}" if known else None

    if problem := differs("id", found.id):
        return problem
    if found.completion is None:
        return None if row["digest"] is None else "one that holds no completion"
    if row["digest"] is None:
        malformed = row["outcome"] == "reject" and row["cause"] == "malformed"
        return None if malformed else differs("node", found.completion.node)
    if row["digest"] == digest_of(found.completion):
        return None
    return differs("node", found.completion.node) or "another text, prompt, node or round"


def page(found: Shown, title: str) -> str:
    """Build the page's HTML, with its script, style and data inline."""
    folder = files("grpo_guard.cli")
    script = folder.joinpath("view.js").read_text(encoding="utf-8")
    style = folder.joinpath("view.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )
    data = _inert(
        {"title": title, "rows": found.rows, "left_out": found.left_out, "about": found.about}
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Verdicts</title><style>{style}</style></head><body><main id="app"></main>'
        f'<script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>"
    )


def _inert(value: Any) -> str:
    """Encode a value as JSON without any characters that have a meaning in HTML."""
    text = json.dumps(value, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
