"""``--fail-under`` and ``--max-honest``: limits that end a command with exit status 1."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from grpo_guard.cli.terminal import exit_with
from grpo_guard.evals.roles import attack_free

if TYPE_CHECKING:
    from grpo_guard.evals.results import Summary

FailUnder = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE",
        help="Exit 1 if less of an attack's poison is rejected, such as 0.95.",
    ),
]  # fmt: skip
MaxHonest = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE", help="Exit 1 if more honest work is rejected, such as 0.01."
    ),
]


# The rejection rates of poison, which should be high, and of right honest answers.
_POISON: Final = "rejected_poisoned"
_RIGHT: Final = "rejected_honest_correct"


def end_where_broken(
    rows: Iterable["Summary"], fail_under: float | None, max_honest: float | None
) -> None:
    """Exit with status 1 if any rejection rate is beyond its limit, after printing a line for each.

    A limit of None is not checked, and other figures in ``rows`` are skipped. A rate over no
    completions counts as beyond its limit, because nothing shows that the limit is met.
    """
    from grpo_guard.evals.results import CONTROL, HONEST, REJECTED

    broken = []
    for row in rows:
        detected = row.metric == REJECTED and not row.attack.startswith(CONTROL)
        poison = row.metric == _POISON and not attack_free(row.attack)
        if poison or (detected and row.attack != HONEST):
            broken += _beyond(row, row.attack, fail_under, "at least")
        elif row.metric == _RIGHT or detected:
            kind = HONEST if detected else f"right honest answers under {row.attack}"
            broken += _beyond(row, kind, max_honest, "at most")
    if broken:
        exit_with("\n".join(f"failed: {line}" for line in broken), 1)


def _beyond(row: "Summary", kind: str, limit: float | None, bound: str) -> list[str]:
    from grpo_guard.evals.stats import Rate, percent

    rate = row.rate or Rate(0, 0)
    share = rate.value
    if limit is None:
        return []
    if share is not None and (share >= limit if bound == "at least" else share <= limit):
        return []
    but = ""
    if row.earns_nothing:
        but = f"; {row.earns_nothing:,} of the {row.accepted:,} accepted earn nothing"
    return [f"{row.defence}, {kind}: expected {bound} {percent(limit)} rejected, got {rate}{but}"]
