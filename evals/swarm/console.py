"""What ``grpo-guard eval swarm`` and the demo print while swarms train."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from grpo_guard.evals.stats import percent

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.experiment import Spec

_LINE_EVERY = 10


@contextmanager
def reporter(
    console: Console, specs: Sequence[Spec], name: Callable[[Spec], str] | None = None
) -> Iterator[Callable[[Spec, dict[str, Any]], None]]:
    """Bars on a terminal, a line every ten rounds elsewhere; may be called from threads.

    Args:
        console: Where to print.
        specs: All runs.
        name: What a run is called; its label by default.
    """
    lock = threading.Lock()
    names = {spec.label: name(spec) if name else spec.label for spec in specs}
    if not console.is_terminal:

        def line(spec: Spec, row: dict[str, Any]) -> None:
            done, rounds = row["iteration"] + 1, spec.config.iterations
            if done % _LINE_EVERY == 0 or done == rounds:
                with lock:
                    console.out(f"{names[spec.label]}  {done}/{rounds}  {_figures(spec, row)}")

        yield line
        return

    def shortened() -> Column:
        return Column(ratio=1, no_wrap=True, overflow="ellipsis")

    # Bar and time keep their width; what is left is the names' and figures'.
    columns = (
        TextColumn("{task.description}", table_column=shortened()),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", table_column=shortened()),
    )
    with Progress(*columns, console=console, expand=True) as bars:
        rounds_of_all = sum(spec.config.iterations for spec in specs)
        whole = bars.add_task("all rounds", total=rounds_of_all, figures="")
        tasks: dict[str, Any] = {}
        rounds_done: dict[str, int] = {}

        def tell(spec: Spec, row: dict[str, Any]) -> None:
            with lock:
                rounds = spec.config.iterations
                if spec.label not in tasks:
                    tasks[spec.label] = bars.add_task(names[spec.label], total=rounds, figures="")
                done = row["iteration"] + 1
                rounds_done[spec.label] = done
                bars.update(tasks[spec.label], completed=done, figures=_figures(spec, row))
                bars.update(whole, completed=sum(rounds_done.values()))
                if done == rounds:
                    bars.update(tasks[spec.label], visible=False)

        yield tell


def _figures(spec: Spec, row: dict[str, Any]) -> str:
    reward = f"honest reward {row['honest_reward']:.2f}, {row['mean_tokens']:.0f} tokens"
    return reward if spec.attack == "none" else f"attack success {percent(row['asr'])}, {reward}"
