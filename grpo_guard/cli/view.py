"""``grpo-guard view``: verdicts in a browser, as one page that needs nothing else.

Completions are hostile, so nothing that they hold becomes markup: ``<``, ``>`` and ``&`` are
escaped in the JSON of the rows, the script adds texts as text nodes only, and the policy of the
page allows no other script, no connection, no frame and no image.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from grpo_guard.cli.inputs import bad_input, writing
from grpo_guard.cli.terminal import echo

MOST_ROWS: Final = 5_000
MOST_TEXT: Final = 20_000
"""Characters of one completion, so that a browser can open the page."""
_CONTEXT: Final = 2_000


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page holds, and what it leaves out.

    Args:
        rows: One mapping per row, with its number in the file as ``index``.
        left_out: Rows that did not fit.
    """

    rows: list[dict[str, Any]]
    left_out: int


def view(
    verdicts: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="What grpo-guard verify wrote.")
    ],
    source: Annotated[
        Path | None,
        typer.Option("--in", "-i", help="The completions that were verified, for their texts."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. [default: OUT.html]")
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=NAME", help="As for grpo-guard verify."),
    ] = None,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Rows on the page; rejected ones come first.")
    ] = MOST_ROWS,
) -> None:
    """Write a page that shows verdicts: filtered, with marked evidence, and by node over rounds."""
    target = out or verdicts.with_suffix(".html")
    with bad_input():
        from grpo_guard.core.files import require_other

        require_other(target, verdicts, *([source] if source else []))
        found = shown_rows(verdicts, source, mapped or [], most)
    with writing(target):
        target.write_text(page(found, verdicts.name), encoding="utf-8")
    left = f"; {found.left_out:,} more rows did not fit (--most)" if found.left_out else ""
    texts = "" if source else "; without --in FILE it has no texts"
    echo(f"wrote {target}: {len(found.rows):,} rows{left}{texts}")


def shown_rows(
    verdicts: Path, source: Path | None, mapped: list[str], most: int = MOST_ROWS
) -> Shown:
    """The rows of the page, in the file's order; accepted rows are left out first.

    Raises:
        InputError: a file cannot be read, or the two do not belong together.
    """
    from grpo_guard.core.jsonl import InputError, read_objects

    kept: list[dict[str, Any]] = []
    accepted: list[dict[str, Any]] = []
    total = 0
    for number, data in read_objects(verdicts):
        if "outcome" not in data or "index" not in data:
            raise InputError(
                f"{verdicts}:{number}: outcome: expected a line that grpo-guard verify wrote, got "
                "one without outcome and index; completions follow --in"
            )
        total += 1
        into = accepted if data["outcome"] == "accept" else kept
        if len(into) < most:
            into.append(_row(data))
    rows = [*kept, *accepted[: max(0, most - len(kept))]]
    rows.sort(key=lambda row: (not isinstance(row["index"], int), row["index"]))
    if source is not None:
        _add_texts(rows, source, mapped)
    return Shown(rows, total - len(rows))


def _row(data: dict[str, Any]) -> dict[str, Any]:
    found = [f for f in _list(data.get("findings")) if isinstance(f, dict)]
    by = list(_deciding(data)) or [str(data.get("verifier"))]
    return {
        "index": data["index"],
        "id": data.get("id"),
        "node": data.get("node"),
        "outcome": str(data["outcome"]),
        "cause": str(data.get("cause")),
        "by": by[:8],
        "p": data.get("p_value"),
        "findings": [
            {
                "kind": str(f.get("kind")),
                "message": str(f.get("message"))[:400],
                "span": _span(f.get("char_span")),
            }
            for f in found[:20]
        ],
    }


def _deciding(data: dict[str, Any], depth: int = 8) -> Iterator[str]:
    for member in _list(data.get("members")):
        if isinstance(member, dict) and member.get("outcome") == data.get("outcome"):
            inner = list(_deciding(member, depth - 1)) if depth else []
            yield from inner or [str(member.get("verifier"))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _span(value: Any) -> list[int] | None:
    two = isinstance(value, list) and len(value) == 2
    return value if two and all(isinstance(i, int) and i >= 0 for i in value) else None


def _add_texts(rows: list[dict[str, Any]], source: Path, mapped: list[str]) -> None:
    """Add each row's prompt, text and round from the file that was verified."""
    from grpo_guard.cli.rows import Rows, opened

    with opened(source, mapped) as file:
        completions = Rows(file, str(source), keep_going=True)
        for row in rows:
            at = row["index"]
            if not isinstance(at, int) or not 0 <= at < len(completions):
                from grpo_guard.core.jsonl import InputError

                raise InputError(
                    f"{source}: expected a row {at!r:.40}, got {len(completions)} rows"
                )
            completion = completions[at].completion
            if completion is not None:
                row["prompt"] = completion.prompt_text[:_CONTEXT]
                row["text"] = completion.text[:MOST_TEXT]
                row["cut"] = len(completion.text) > MOST_TEXT
                row["round"] = completion.round


def page(found: Shown, title: str) -> str:
    """The page, self-contained."""
    folder = files("grpo_guard.cli")
    script = folder.joinpath("view.js").read_text(encoding="utf-8")
    style = folder.joinpath("view.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )
    data = _inert({"title": title, "rows": found.rows, "left_out": found.left_out})
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Verdicts</title><style>{style}</style></head><body><main id="app"></main>'
        f'<script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>"
    )


def _inert(value: Any) -> str:
    """JSON that holds no character with a meaning in HTML; lone surrogates are replaced."""
    text = json.dumps(value, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
