"""``grpo-guard ledger``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_guard.cli.inputs import bad_input

if TYPE_CHECKING:
    from rich.table import Table

    from grpo_guard.nodes.report import Standing, SybilHint

app = typer.Typer(no_args_is_help=True, help="Evidence per node over rounds.")


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The guard's state folder, or a SQLite file.")
    ],
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
    book: Annotated[str, typer.Option(help="Counted findings, e.g. arithmetic.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """How each node stands, and why. Works while a run writes; exit 2 where it is no ledger."""
    import json

    from rich.console import Console

    from grpo_guard.nodes.schema import LedgerError
    from grpo_guard.nodes.show import read
    from grpo_guard.nodes.store import in_folder

    with bad_input(LedgerError, ValueError):
        shown = read(in_folder(path), node, book=book)
    if as_json:
        typer.echo(json.dumps(shown.to_dict(), indent=2))
        return
    console = Console()
    console.print(table(shown.nodes, str(path)))
    for hint in shown.hints:
        typer.echo(hint_line(hint))
    for line in shown.notes:
        typer.echo(line)


@app.command()
def release(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The guard's state folder, or a SQLite file.")
    ],
    node: Annotated[str, typer.Argument(help="The node that was found hard wrongly.")],
    book: Annotated[str, typer.Option(help="Counted findings, e.g. arithmetic.")] = "",
) -> None:
    """Clear one node: its past no longer counts. Exit 2 where there is no such ledger or node."""
    from grpo_guard.nodes.release import release as clear
    from grpo_guard.nodes.schema import LedgerError
    from grpo_guard.nodes.store import in_folder

    with bad_input(LedgerError, ValueError):
        clear(in_folder(path), node, book=book)
    typer.echo(f"released {node!a}; running guards follow at their next batch")


def table(nodes: list[Standing], title: str) -> Table:
    """One row a node, the worst first; nothing in it is read as markup."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(title))
    headings = ("node", "state", "completions", "rejected", "rate / others", "evidence", "reasons")
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for s in nodes:
        state = s.state.value
        if s.state.value != "clear":
            state += f" since round {s.since}"
        if s.owed:
            withheld = f", {s.empty} of {s.owed} slots empty"
            state += withheld + (" (withholds)" if s.withholds.value != "clear" else "")
        row = (
            s.node,
            state,
            f"{s.judged:,}",
            f"{s.rejected:,}",
            f"{percent(s.rate)} / {percent(s.others_rate)}",
            evidence(s),
            ", ".join(f"{kind} {count:,}" for kind, count in s.reasons),
        )
        shown.add_row(*(Text(cell) for cell in row))
    return shown


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2%}"


def evidence(standing: Standing) -> str:
    """The e-value, as a power of ten since it grows without limit."""
    if standing.peers < 2:
        return "too few peers"
    return f"e = 10^{standing.log_e / 2.302585:.1f}, level {standing.level:.2f}"


def hint_line(hint: SybilHint) -> str:
    nodes = ", ".join(hint.nodes[:10]) + (" ..." if len(hint.nodes) > 10 else "")
    return f"shared phrase (up to {hint.count} times a node): {hint.excerpt!r}: {nodes}"
