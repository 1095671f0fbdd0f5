"""A table with several output formats: HTML, terminal, Markdown, or aligned text.

A cell's content can be hostile: each output format names hidden characters and escapes anything
that it would treat as markup.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from grpo_guard.core.quoting import printable
from grpo_guard.evals.report.excerpt import visible
from grpo_guard.evals.report.page import esc, prose
from grpo_guard.evals.stats import OverSeeds, Rate

DASH: Final = "–"
WIDE: Final = 7
"""Maximum number of columns that fit on a document's page."""
NARROW: Final = 6
"""Maximum number of columns to show on a terminal 80 characters wide."""
_GAP: Final = 2
"""Number of spaces between two columns."""
_LONGEST_WORD: Final = 24
KEYS: Final = 2
"""Number of leading columns that identify a row."""


@dataclass(frozen=True, slots=True)
class Shade:
    """A figure with details, and a severity ``level`` from 0 (as it should be) to 3."""

    text: str
    detail: tuple[str, ...] = ()
    level: int | None = None


Cell: TypeAlias = str | Rate | Shade


@dataclass(frozen=True, slots=True)
class Table:
    """Column names and rows of a table, which are formatted on output."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self, kind: str = "stack") -> str:
        """Format for a page; the kind "stack" turns rows into cards on narrow screens."""
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

    def rich(self, title: str | None = None, room: int = 80) -> RichTable:
        """Format for a terminal of ``room`` characters; only words that do not fit are cut.

        Figures are right-aligned.
        """
        shown = RichTable(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim",
            title=title and Text(visible(title), style="bold"), title_justify="left",
        )  # fmt: skip
        # Left to itself, Rich would cut words in one column while another has room to wrap.
        for number, (name, width) in enumerate(zip(self.header, self._widths(room), strict=True)):
            shown.add_column(
                Text(visible(name)), justify="right" if number else "left", width=width
            )
        for row in self.rows:
            shown.add_row(*(_rich_cell(cell) for cell in row))
        return shown

    def narrow(self, room: int = 80) -> "Table":
        """Keep the first columns: as many as fit into ``room`` characters, and at most `NARROW`."""
        used, kept = -_GAP, 0
        for least, _ in self._column_sizes()[:NARROW]:
            used += least + _GAP
            if kept and used > room:
                break
            kept += 1
        if kept == len(self.header):
            return self
        return Table(self.header[:kept], [row[:kept] for row in self.rows])

    def _widths(self, room: int) -> list[int]:
        """Return the width of each column, between its longest word and its longest line."""
        sizes = self._column_sizes()
        widths = [least for least, _ in sizes]
        left = room - sum(widths) - _GAP * (len(widths) - 1)
        while left > 0:
            growing = [i for i, (_, most) in enumerate(sizes) if widths[i] < most]
            if not growing:
                break
            for i in growing[:left]:
                widths[i] += 1
            left -= len(growing[:left])
        return widths

    def _column_sizes(self) -> list[tuple[int, int]]:
        """Return the (longest word, longest line) of each column, in terminal characters."""
        sizes = []
        for number, name in enumerate(self.header):
            lines = [visible(name)]
            for row in self.rows:
                cell = _shade_of(row[number])
                lines += [visible(part) for part in (cell.text, *cell.detail)]
            words = (cell_len(word) for line in lines for word in line.split(" "))
            least = min(max(words, default=1), _LONGEST_WORD)
            sizes.append((max(1, least), max(1, *map(cell_len, lines))))
        return sizes

    def markdown(self) -> str:
        """Format as Markdown; a wide table is split, and each part repeats the first columns."""
        return "\n".join(part._markdown() for part in self._parts())

    def _parts(self) -> Iterator["Table"]:
        if len(self.header) <= WIDE:
            yield self
            return
        step = WIDE - KEYS
        for start in range(KEYS, len(self.header), step):
            columns = [*range(KEYS), *range(start, min(start + step, len(self.header)))]
            rows = [[row[i] for i in columns] for row in self.rows]
            # A row with only dashes here carries no information.
            kept = [row for row in rows if any(cell != DASH for cell in row[KEYS:])]
            if kept:
                yield Table([self.header[i] for i in columns], kept)

    def _markdown(self) -> str:
        rows = (" | ".join(map(_markdown_cell, row)) for row in (self.header, *self.rows))
        head, *body = (f"| {row} |" for row in rows)
        return "\n".join([head, "|" + "---|" * len(self.header), *body]) + "\n"

    def text(self) -> Iterator[str]:
        """Format for a file or a pipe: one line per row, columns aligned by spaces."""
        lines = [[_one_line(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(cell_len(cell) for cell in column) for column in zip(*lines, strict=True)]
        for cells in lines:
            padded = [
                cell + pad if number == 0 else pad + cell
                for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
                for pad in (" " * (width - cell_len(cell)),)
            ]
            yield (" " * _GAP).join(padded).rstrip()


def print_table(console: Console, table: Table, title: str | None = None) -> None:
    """Print a table fitted to the terminal's width or, without one, with one line per row."""
    if console.is_terminal:
        console.print(table.rich(title, console.width))
        return
    for line in (title, *table.text()) if title else table.text():
        print(printable(line), file=console.file)  # rich would wrap it at 80 characters


def level(value: float, limits: Sequence[float]) -> int:
    """Return the shade of a cell: how many of the ascending ``limits`` its value exceeds."""
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
    """Format a rate, count and interval; shaded by its value or, if ``missed``, by 1 - value."""
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
