"""``grpo-guard eval swarm``: training runs under attack, and their outcomes."""

import inspect
import shlex
import sys
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.cli.terminal import echo, exit_with, terminal
from grpo_guard.core.quoting import counted
from grpo_guard.evals.cli import TRAINING, fail, require
from grpo_guard.evals.limits import end_where_broken
from grpo_guard.evals.roles import attack_free
from grpo_guard.evals.swarm.options import SwarmOptions

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.experiment import Spec

_SHOWN: Final = 12
"""Maximum number of (attack, defence) pairs listed before the runs start."""


def swarm(**given: Any) -> None:
    """Train swarms under attack: attack success and honest reward, round by round.

    After Ctrl-C, finished work is kept; run the same command again to continue from there.
    """
    options = SwarmOptions(**given)
    require("eval swarm", *TRAINING)
    if options.list_names:
        _list()
        return
    _require_names(options)
    from transformers.utils import logging

    from grpo_guard.core.registry import UnknownNameError
    from grpo_guard.evals.sandbox.sandbox import SandboxUnavailableError
    from grpo_guard.evals.swarm.request import requested

    logging.disable_progress_bar()  # else a one-second bar per run breaks up our own
    try:
        specs = requested(options)
    except (ValueError, UnknownNameError) as error:
        fail(str(error))
    except (SandboxUnavailableError, OSError) as error:
        fail(str(error), code=1)
    _announce(specs, options)
    _run(specs, options)


# Typer reads the options from the signature.
swarm.__signature__ = inspect.signature(SwarmOptions, eval_str=True)  # type: ignore[attr-defined]


def _require_names(options: SwarmOptions) -> None:
    """End the command if a name or a guard file is wrong, before torch is loaded."""
    from grpo_guard.core.registry import UnknownNameError
    from grpo_guard.evals.attacks.registry import attack_names
    from grpo_guard.evals.defences.early import ON_REJECT, defences, require_names, shares
    from grpo_guard.evals.defences.own import guard_files
    from grpo_guard.evals.policies.named import location
    from grpo_guard.evals.tasks.registry import TASKS

    try:
        require_names("--attack", options.attack, attack_names())
        require_names("--defence", options.defence, defences())
        guard_files(options.guard)
        require_names("--task", options.task, TASKS)
        require_names("--on-reject", options.on_reject, ON_REJECT)
        shares(options.share)
        for name in filter(None, map(str.strip, (options.policy or "").split(","))):
            location(name)
    except (UnknownNameError, ValueError) as error:
        fail(str(error))


def _list() -> None:
    from grpo_guard.evals.attacks.adversary import OfTexts
    from grpo_guard.evals.attacks.registry import adversary, attack_names
    from grpo_guard.evals.defences.early import defences
    from grpo_guard.evals.roles import ordered_attacks, ordered_defences, role
    from grpo_guard.evals.tasks.registry import TASKS

    width = get_terminal_size((80, 24)).columns
    echo("attacks (setting, task: description):")
    for name in ordered_attacks(attack_names()):
        found = adversary(name)
        if found is not None:
            described = found.attack if isinstance(found, OfTexts) else found
            what = (type(described).__doc__ or "").partition("\n\n")[0].replace("`", "")
            row = f"  {name:<22} {found.setting}, {found.task}: {' '.join(what.split())}"
            echo(fill(row, width, subsequent_indent=" " * 25))
    echo(f"  {'none':<22} all nodes are honest\ndefences:")
    for name in ordered_defences(defences()):
        echo(f"  {name:<22} {role(name)}")
    echo(f"tasks:\n  {', '.join(TASKS)}")


def _announce(specs: list["Spec"], options: SwarmOptions) -> None:
    """Print the number of runs and rounds to come."""
    from grpo_guard.evals.swarm.suite import is_finished, rounds

    done = sum(is_finished(spec, options.out) for spec in specs)
    before = f", {done} of them finished before" if done else ""
    cells = dict.fromkeys(f"{spec.shown_attack} x {spec.shown_defence}" for spec in specs)
    shown = ", ".join([*cells][:_SHOWN]) + (", ..." if len(cells) > _SHOWN else "")
    runs = counted(len(specs), "run")
    echo(f"{runs}, {rounds(specs)} rounds in all{before}: {shown}", err=True)


def _run(specs: list["Spec"], options: SwarmOptions) -> None:
    from grpo_guard.evals.progress import reporter
    from grpo_guard.evals.report.console import markdown_table, print_outcomes
    from grpo_guard.evals.report.html import write_report
    from grpo_guard.evals.results import load_results
    from grpo_guard.evals.swarm.suite import LINE_EVERY, RunError, play_all, rounds, row_reporter
    from grpo_guard.evals.swarm.training import CheckpointError
    from grpo_guard.server.distributed.cluster import RayMissingError

    command, out = shlex.join(["grpo-guard", *sys.argv[1:]]), options.out
    try:
        with reporter(terminal(stderr=True), every=LINE_EVERY, whole=rounds(specs)) as say:
            results = play_all(
                specs, out, command=command, on_row=row_reporter(say), every=options.every,
                workers=options.workers, engine=options.engine,
            )  # fmt: skip
        report = write_report(out)
        loaded = load_results(out / "results.json")
        (out / "table.md").write_text(markdown_table(loaded), encoding="utf-8")
    except KeyboardInterrupt:
        exit_with(f"\nstopped; finished work is kept in {out}. To continue: {command}", 130)
    except (CheckpointError, ValueError) as error:
        fail(str(error))
    except (RayMissingError, RunError) as error:
        fail(str(error), code=1)
    except OSError as error:
        fail(f"{error}\nearlier results are kept in {out}; to continue: {command}", code=1)
    print_outcomes(terminal(), loaded)
    for run in results["runs"]:
        if not attack_free(run["attack"]) and not run["submitted"]["poisoned"]:
            echo(f"warning: {run['attack']}, {run['defence']}: no poison was sent", err=True)
    echo(f"wrote {out / 'results.json'}, {report} and {out / 'table.md'}")
    # If the user's own guards are in the run, the limits apply only to them.
    own = {spec.shown_defence for spec in specs if spec.guard}
    rows = [row for row in loaded.summary if not own or row.defence in own]
    end_where_broken(rows, options.fail_under, options.max_honest)
