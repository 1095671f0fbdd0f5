"""``grpo-guard eval swarm``: training runs under attack, and what they ended at."""

from __future__ import annotations

import inspect
import shlex
import sys
from typing import TYPE_CHECKING, Any

import typer

from grpo_guard.evals.cli import TRAINING, fail, require
from grpo_guard.evals.swarm.options import SwarmOptions

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.experiment import Spec


def swarm(**given: Any) -> None:
    """Train swarms under attack: attack success and honest reward, round by round.

    Stopped with Ctrl-C it saves what is done; the same command goes on from there.
    """
    options = SwarmOptions(**given)
    require("eval swarm", *TRAINING)
    from grpo_guard.evals.sandbox.sandbox import SandboxUnavailableError
    from grpo_guard.evals.swarm.request import requested
    from grpo_guard.registry import UnknownNameError

    try:
        specs = requested(options)
    except (ValueError, UnknownNameError) as error:
        fail(str(error))
    except (SandboxUnavailableError, OSError) as error:
        fail(str(error), code=1)
    _run(specs, options)


# Typer reads the options off the signature.
swarm.__signature__ = inspect.signature(SwarmOptions, eval_str=True)  # type: ignore[attr-defined]


def _run(specs: list[Spec], options: SwarmOptions) -> None:
    from rich.console import Console
    from transformers.utils import logging

    from grpo_guard.evals.report.html import write_report
    from grpo_guard.evals.report.tables import markdown_table
    from grpo_guard.evals.results import load_results
    from grpo_guard.evals.swarm.console import reporter
    from grpo_guard.evals.swarm.ray_session import RayMissingError
    from grpo_guard.evals.swarm.suite import RunError, play_all
    from grpo_guard.evals.swarm.training import CheckpointError

    logging.disable_progress_bar()  # one bar per run, of a second each, between our own
    command, out = shlex.join(["grpo-guard", *sys.argv[1:]]), options.out
    try:
        with reporter(Console(stderr=True), specs) as tell:
            results = play_all(
                specs, out, command=command, tell=tell, every=options.every,
                workers=options.workers, engine=options.engine.value,
            )  # fmt: skip
        report = write_report(out)
        table = markdown_table(load_results(out / "results.json"))
        (out / "table.md").write_text(table, encoding="utf-8")
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; what is done is kept in {out}. To go on: {command}", err=True)
        raise typer.Exit(130) from None
    except (CheckpointError, ValueError) as error:
        fail(str(error))
    except (RayMissingError, RunError) as error:
        fail(str(error), code=1)
    except OSError as error:
        fail(f"{error}\nwhat was saved before is kept in {out}; to go on: {command}", code=1)
    typer.echo(table)
    for run in results["runs"]:
        if run["attack"] != "none" and not run["submitted"]["poisoned"]:
            typer.echo(f"warning: {run['attack']}, {run['defence']}: no poison was sent", err=True)
    typer.echo(f"wrote {out / 'results.json'}, {report} and {out / 'table.md'}")
