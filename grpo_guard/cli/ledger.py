"""The command ``grpo-guard ledger``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from grpo_guard.cli.inputs import bad_input
from grpo_guard.cli.terminal import echo, terminal
from grpo_guard.core.quoting import shown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.table import Table

    from grpo_guard.content.recurrence.seats import Conviction
    from grpo_guard.nodes.report import Standing, SybilHint

NOT_ENOUGH = "not enough evidence yet"
_UNLIMITED = 10_000
LEGEND = """\
e      What a stake of 1, bet on the node being worse than its peers, became.
       An honest node's e reaches 1,000 with a chance of at most 1 in 1,000.
level  How far e has come, on a logarithmic scale, to what excludes the node.
       1: hard, its completions are rejected. 0.5: soft, it is only watched.
       It fades while no new evidence comes."""
LEGEND_OF_COUNTS: Final = """\
e  What a stake of 1, bet on the node having a finding more often than its
   peers, became. From {loss} on, its completions with a finding are rejected,
   and no others ({nodes} nodes / the default count_alpha of {alpha:g})."""
_OF_LOG_PROBS: Final = "_fortunes"
"""How the names of memories that log-prob verifiers keep of nodes end."""
_LEGEND_OF_PHRASES: Final = """\
A rejection for what a node repeats (recurrence) is no evidence and does not
count here; such rejections are for:"""
_SHOWN: Final = 3
"""Maximum number of phrases shown per node."""

app = typer.Typer(no_args_is_help=True, help="Show the evidence about nodes, or clear one.")


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The guard's state folder, or a SQLite file.")
    ],
    node: Annotated[str | None, typer.Option(help="Only this node.")] = None,
    book: Annotated[str, typer.Option(help="A rule that counts, e.g. arithmetic.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Show the state of each node, and why. Works during a run; exit 2 if PATH is not a ledger.

    States: "not enough evidence yet" ("clear" in --json); "soft": the node is
    watched; "hard": its completions are rejected; "released": cleared by
    "ledger release", and no round has been judged since.

    "e" is what a stake of 1, bet on the node being worse than its peers, has
    grown to. "level" is how close e is to excluding the node: soft from 0.5,
    hard from 1.
    """
    import json

    from grpo_guard.content.recurrence.state import stored_convictions
    from grpo_guard.nodes.report import read
    from grpo_guard.nodes.schema import LedgerError
    from grpo_guard.nodes.stored import counting_rules

    with bad_input(LedgerError):
        file = ledger_file(path)
    if book:
        echo(counts_of(path, node, book, as_json))
        return
    with bad_input(LedgerError, ValueError):
        shown = read(file, node)
        recurring = stored_convictions(file)
        if node is not None:
            (standing,) = shown.nodes
            recurring = {name: of for name, of in recurring.items() if name == standing.node}
        rules = counting_rules(file)
    if as_json:
        echo(json.dumps({**shown.to_dict(), "recurring": _as_rows(recurring)}, indent=2))
        return
    console = terminal()
    console.print(table(console, shown.nodes, str(path)))
    echo(LEGEND)
    for standing in shown.nodes:
        if standing.reasons:
            echo(reasons_line(standing))
    if recurring:
        echo(_LEGEND_OF_PHRASES)
    for name, convictions in recurring.items():
        echo(recurring_line(name, convictions))
    for hint in shown.hints:
        echo(hint_line(hint))
    if rules:
        worst = ", ".join(rule_and_worst(path, rule) for rule in rules)
        echo(f"rules that count findings, for --book: {worst}")
    for line in shown.notes:
        echo(line)


@app.command()
def release(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The guard's state folder, or a SQLite file.")
    ],
    node: Annotated[str, typer.Argument(help="The node that was wrongly found hard.")],
    book: Annotated[str, typer.Option(help="A rule that counts, e.g. arithmetic.")] = "",
) -> None:
    """Clear a node: its past no longer counts. Exit 2 if the ledger or the node is unknown.

    What recurrence and rules that count know of the node is forgotten, too;
    with --book, only what that rule has counted.
    """
    from grpo_guard.content.recurrence.phrases import shown as shown_phrase
    from grpo_guard.content.recurrence.state import release_stored, stored_convictions
    from grpo_guard.nodes.counts import counted_in
    from grpo_guard.nodes.intake import name_bytes, printable
    from grpo_guard.nodes.release import release as clear
    from grpo_guard.nodes.schema import LedgerError, unknown_node
    from grpo_guard.nodes.stored import named, release_counts

    phrases: list[Conviction] = []
    with bad_input(LedgerError, ValueError):
        file = ledger_file(path)
        if not book:
            stored = clear(file, node)
            phrases = stored_convictions(file).get(printable(stored), phrases)
            release_stored(file, stored)
            release_counts(file, stored)
            node = stored.decode("utf-8", "backslashreplace")
        else:
            counted = counted_in(path, book)
            known = list(counted.log_e_values())
            if not sum(counted.release(name) for name in named(known, node)):
                raise unknown_node(path, node, map(name_bytes, known))
    echo(f"released {shown_name(node)}; running guards follow at their next batch")
    if phrases:
        echo(
            f"if it goes on repeating {shown_phrase(phrases[0].phrase)}, it will be rejected "
            "again; declare what honest work repeats as ordinary=[...]"
        )


def ledger_file(path: Path) -> Path:
    """Return the ledger of a state folder, or ``path`` itself if it is a file. Raises LedgerError
    if there is none; the message says where a ledger is."""
    from grpo_guard.core.files import nowhere
    from grpo_guard.nodes.schema import LedgerError
    from grpo_guard.nodes.store import FILE, in_folder

    file = in_folder(path)
    expected = f"the folder that the guard file names as state:, or {FILE} in it"
    if path.is_dir() and not file.exists():
        raise LedgerError(f"{path}: expected {expected}, got a folder without {FILE}")
    if not file.exists():
        raise LedgerError(f"{path}: {nowhere(path, expected)}")
    if path.suffix in (".yaml", ".yml"):
        raise LedgerError(f"{path}: expected {expected}, got YAML")
    return file


def counts_of(path: Path, node: str | None, book: str, as_json: bool) -> str:
    """List a counting rule's evidence on each node as e-values, largest first."""
    import json

    from grpo_guard.nodes.counts import COUNT_ALPHA, counted_in, log_loss
    from grpo_guard.nodes.same_prompt import FEWEST_NODES
    from grpo_guard.nodes.schema import LedgerError
    from grpo_guard.nodes.stored import named

    with bad_input(LedgerError, ValueError):
        found = counted_in(path, book).log_e_values()
    asked = found if node is None else named(found, node)
    shown = sorted((-found[name], name) for name in asked)
    if as_json:
        return json.dumps(
            {"nodes": [{"node": name, "log_e": -log} for log, name in shown]}, indent=2
        )
    lines = [f"{shown_name(name)}  e = {_power(-log)}" for log, name in shown]
    if book.endswith(_OF_LOG_PROBS):
        return "\n".join(lines)
    nodes = max(FEWEST_NODES, len(found))
    loss = _power(log_loss(COUNT_ALPHA, nodes))
    return "\n".join([*lines, LEGEND_OF_COUNTS.format(loss=loss, nodes=nodes, alpha=COUNT_ALPHA)])


def rule_and_worst(path: Path, rule: str) -> str:
    """Name a counting rule, and the node that it has most against."""
    from grpo_guard.nodes.counts import counted_in

    found = counted_in(path, rule).log_e_values()
    name = max(found, key=found.__getitem__)
    return f"{rule} ({shown_name(name)}: e = {_power(found[name])})"


def _as_rows(recurring: Mapping[str, list[Conviction]]) -> dict[str, list[dict[str, Any]]]:
    """Return the convictions of `recurrence` by node, for JSON."""
    keys = ("kind", "phrase", "hits", "total", "p_value")
    return {
        name: [{key: getattr(conviction, key) for key in keys} for conviction in each]
        for name, each in recurring.items()
    }


def _power(log_e: float) -> str:
    return f"10^{log_e / 2.302585:.1f}"


def table(console: Console, nodes: list[Standing], title: str) -> Table:
    """Tabulate the nodes, worst first; names are not read as markup. Each row is a single line if
    all rows fit the console's width; otherwise rows span several lines. Numbers are never broken,
    and words only if they are longer than their column, because a node's name can have any
    length."""
    from rich.measure import Measurement

    flat = _table(nodes, title, ", ")
    room = console.options.update(width=_UNLIMITED)
    fits = Measurement.get(console, room, flat).maximum <= console.width
    return flat if fits else _table(nodes, title, "\n")


def _table(nodes: list[Standing], title: str, between: str) -> Table:
    """Build the table of nodes; ``between`` separates a count from its percentage."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(title), box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    shown.add_column("node", overflow="fold", min_width=8)
    shown.add_column("state", min_width=13)
    for heading in ("rejected", "others", "e", "level"):
        shown.add_column(heading, no_wrap=True, justify="right")
    for s in nodes:
        rejected = f"{s.rejected:,} of {s.judged:,}{between}{percent(s.rate)}"
        row = (s.node, state(s), rejected, percent(s.others_rate), *evidence(s))
        shown.add_row(*(Text(cell) for cell in row))
    return shown


def state(standing: Standing) -> str:
    """Describe a node's state, and how many of its slots are empty."""
    if standing.state.value != "clear":
        described = f"{standing.state.value} since round {standing.since}"
    elif standing.released:
        described = "released"
    elif standing.peers < 2:
        described = "too few peers"
    else:
        described = NOT_ENOUGH
    if standing.owed:
        withholds = " (withholds)" if standing.withholds.value != "clear" else ""
        described += f"\n{standing.empty:,} of {standing.owed:,} slots empty{withholds}"
    return described


def percent(rate: float | None) -> str:
    """Format a share as a percentage; ``-`` for None."""
    return "-" if rate is None else f"{rate:.2%}"


def evidence(standing: Standing) -> tuple[str, str]:
    """Format a node's e-value, as a power of ten because it grows without limit, and its level."""
    if standing.peers < 2:
        return "-", "-"
    return _power(standing.log_e), f"{standing.level:.2f}"


def reasons_line(standing: Standing) -> str:
    """Format the reasons why a node was rejected, on one line."""
    reasons = ", ".join(f"{kind} {count:,}" for kind, count in standing.reasons)
    return f"{standing.node} was rejected for: {reasons}"


def recurring_line(node: str, convictions: list[Conviction]) -> str:
    """Format the phrases for which a node's completions are rejected, on one line."""
    from grpo_guard.content.recurrence.phrases import shown as shown_phrase

    by_phrase = {c.phrase: c for c in reversed(convictions)}  # several features share a phrase
    every = sorted(by_phrase.values(), key=lambda c: c.p_value)
    shown = [
        f"{shown_phrase(c.phrase)} (in {c.hits:,} of {c.total:,} prompts)" for c in every[:_SHOWN]
    ]
    more = f" and {len(every) - _SHOWN:,} more" if len(every) > _SHOWN else ""
    return f"{node}: completions are rejected for {', '.join(shown)}{more}"


def hint_line(hint: SybilHint) -> str:
    """Format a phrase shared by several nodes, on one line."""
    nodes = ", ".join(hint.nodes[:10]) + (" ..." if len(hint.nodes) > 10 else "")
    return f"shared phrase (up to {hint.count} times a node): {hint.excerpt!r}: {nodes}"
