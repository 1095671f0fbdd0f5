"""One table for several outputs: page, terminal, Markdown, or tab-separated lines.

The content of a cell may be hostile: each output names hidden characters and escapes anything that
it would treat as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from grpo_guard.evals.report.excerpt import visible
from grpo_guard.evals.report.page import esc, prose
from grpo_guard.evals.stats import OverSeeds, Rate
from grpo_guard.quoting import printable

DASH: Final = "–"
WIDE: Final = 7
"""Columns of a table that a page of a document has room for."""
NARROW: Final = 6
"""Columns for which 80 characters of a terminal are enough."""
KEYS: Final = 2
"""Columns that identify a row."""


@dataclass(frozen=True, slots=True)
class Shade:
    """A figure with its details, and its severity: from 0, as it should be, to 3."""

    text: str
    detail: tuple[str, ...] = ()
    level: int | None = None


Cell: TypeAlias = str | Rate | Shade


@dataclass(frozen=True, slots=True)
class Table:
    """Column names and rows, formatted on output."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self, kind: str = "stack") -> str:
        """Format for a page; the kind "stack" turns rows into cards on a narrow screen."""
        head = "".join(f'<th scope="col">{prose(name)}</th>' for name in self.header)
        body = "".join(
            "<tr>"
            + "".join(_html_cell(name, cell) for name, cell in zip(self.header, row, strict=True))
            + "</tr>"
            for row in self.rows
        )
        return (
            f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def rich(self, title: str | None = None) -> RichTable:
        """Format for a terminal; figures are right-aligned."""
        shown = RichTable(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim",
            title=title and Text(visible(title), style="bold"), title_justify="left",
        )  # fmt: skip
        for number, name in enumerate(self.header):
            cells = [name, *(_shade_of(row[number]).text for row in self.rows)]
            whole = max((len(word) for cell in cells for word in visible(cell).split()), default=1)
            shown.add_column(
                Text(visible(name)),
                justify="right" if number else "left",
                min_width=min(whole, 24),  # so that no word is cut
            )
        for row in self.rows:
            shown.add_row(*(_rich_cell(cell) for cell in row))
        return shown

    def narrow(self) -> Table:
        """The first columns, for a terminal; the report has the others."""
        if len(self.header) <= NARROW:
            return self
        return Table(self.header[:NARROW], [row[:NARROW] for row in self.rows])

    def markdown(self) -> str:
        """Format for a document; a wide table is split, repeating the first columns."""
        return "\n".join(part._markdown() for part in self._parts())

    def _parts(self) -> Iterator[Table]:
        if len(self.header) <= WIDE:
            yield self
            return
        step = WIDE - KEYS
        for start in range(KEYS, len(self.header), step):
            columns = [*range(KEYS), *range(start, min(start + step, len(self.header)))]
            rows = [[row[i] for i in columns] for row in self.rows]
            # A row that has only dashes here carries no information.
            kept = [row for row in rows if any(cell != DASH for cell in row[KEYS:])]
            if kept:
                yield Table([self.header[i] for i in columns], kept)

    def _markdown(self) -> str:
        rows = (" | ".join(map(_markdown_cell, row)) for row in (self.header, *self.rows))
        head, *body = (f"| {row} |" for row in rows)
        return "\n".join([head, "|" + "---|" * len(self.header), *body]) + "\n"

    def tabs(self) -> Iterator[str]:
        """Format for a program: one line per row, cells separated by tabs."""
        for row in (self.header, *self.rows):
            yield "\t".join(_one_line(cell) for cell in row)


def print_table(console: Console, table: Table, title: str | None = None) -> None:
    """Print a table on a terminal, tab-separated lines elsewhere."""
    if console.is_terminal:
        console.print(table.rich(title))
        return
    for line in (title, *table.tabs()) if title else table.tabs():
        print(printable(line), file=console.file)  # rich would turn the tabs into spaces


def level(value: float, limits: Sequence[float]) -> int:
    """Count the rising limits that a value exceeds: the shade of its cell."""
    return sum(value > limit for limit in limits)


def seeds_cell(
    found: OverSeeds | None, show: Callable[[float], str], *more: str, level: int | None = None
) -> Cell:
    """Format a mean over seeds with its interval and further details."""
    if found is None:
        return DASH
    return Shade(show(found.value), (*found.details(show), *more), level)


def rate_cell(
    rate: Rate | None, *more: str, limits: Sequence[float] = (), missed: bool = False
) -> Cell:
    """Format a share with count and interval, shaded by itself, or by what it ``missed``."""
    if rate is None or rate.value is None:
        return DASH
    shade = level(1 - rate.value if missed else rate.value, limits) if limits else None
    return Shade(rate.value_text, (rate.count_text, rate.interval_text, *more), shade)


def _shade_of(cell: Cell) -> Shade:
    if isinstance(cell, Shade):
        return cell
    if isinstance(cell, str) or not cell.total:
        return Shade(cell if isinstance(cell, str) else cell.count_text)
    return Shade(cell.value_text, (cell.count_text, cell.interval_text))


def _html_cell(name: str, cell: Cell) -> str:
    found = _shade_of(cell)
    shade = "" if found.level is None else f' class="lv{found.level}"'
    details = "".join(f"<small>{prose(part)}</small>" for part in found.detail)
    return f'<td data-name="{esc(name)}"{shade}><span>{prose(found.text)}</span>{details}</td>'


def _rich_cell(cell: Cell) -> Text:
    found = _shade_of(cell)
    text = Text(visible(found.text))
    for part in found.detail:
        text.append(f"\n{visible(part)}", style="dim")
    return text


def _one_line(cell: Cell) -> str:
    if isinstance(cell, Shade):
        cell = f"{cell.text} ({'; '.join(cell.detail)})" if cell.detail else cell.text
    return visible(cell).replace("\n", " ").replace("\t", " ")


def _markdown_cell(cell: Cell) -> str:
    return _one_line(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
