"""The command ``grpo-guard spot-check``."""

from typing import Annotated

import typer

from grpo_guard.cli.inputs import bad_input
from grpo_guard.cli.terminal import terminal

app = typer.Typer(no_args_is_help=True, help="Cost and detection rate of checking a sample.")
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)


@app.command()
def plan(
    sent: Annotated[int, typer.Option(help="Completions per node and round.")] = 1000,
    poisoned: Annotated[int, typer.Option(help="How many of them are poisoned.")] = 10,
    power: Annotated[float, typer.Option(help="Chance that checked poison is rejected.")] = 1,
    share: Annotated[
        list[float] | None, typer.Option(help="Share that is checked; repeatable.")
    ] = None,
) -> None:
    """Show how likely a sample of each size finds poison. Figures are exact, see docs/scale.md.

    "caught" is the chance of a rejection in a round of one node, after which
    the whole round is checked. "rounds" is the expected number of rounds until
    that happens, and "earned" the expected number of poisoned completions that
    have earned a reward by then. All figures are for a known node that behaves
    the same in every round.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from grpo_guard.guard.spot_odds import odds

    with bad_input(ValueError):
        rows = [(s, odds(sent, poisoned, s, power)) for s in share or SHARES]
    shown = Table(box=SIMPLE_HEAD)
    for heading in ("share", "checked", "caught", "rounds", "earned"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for s, row in rows:
        figures = (f"{figure:.4g}" for figure in (row.caught, row.rounds, row.earned))
        shown.add_row(f"{s:.3g}", f"{row.checked:,}", *figures)
    terminal().print(shown)
