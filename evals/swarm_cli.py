"""``grpo-guard eval swarm``: training runs under attack, and what they ended at."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.experiment import Spec


class SettingName(StrEnum):
    """Who chooses the problems."""

    HORIZONTAL = "horizontal"
    VERTICAL = "vertical"


class ModelsName(StrEnum):
    """Whether honest nodes hold the same weights."""

    HOMOGENEOUS = "homogeneous"
    HETEROGENEOUS = "heterogeneous"


class OnRejectName(StrEnum):
    """What a rejected completion earns."""

    DROP = "drop"
    ZERO = "zero"


NAMES = "Names with commas."


AttacksOption = Annotated[str | None, typer.Option(help=f"{NAMES} [default: text]")]
DefencesOption = Annotated[str | None, typer.Option(help=f"{NAMES} [default: none,homogeneous]")]
SettingOption = Annotated[
    SettingName | None, typer.Option(help="For all attacks. [default: each attack's own]")
]
MaxNewTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Longest completion. [default: what the attack needs]")
]
OnRejectOption = Annotated[OnRejectName, typer.Option(help="Leave it out, or reward 0.")]
ModelOption = Annotated[
    str | None, typer.Option(metavar="PATH_OR_ID", help="Policy. [default: the bundled one]")
]
StandardOption = Annotated[
    bool, typer.Option("--standard", help="The paper's attacks, four defences, two seeds.")
]
PaperOption = Annotated[
    bool, typer.Option("--paper", help="The paper's batch, rounds and five seeds; hours.")
]


def swarm(
    attack: AttacksOption = None,
    defence: DefencesOption = None,
    setting: SettingOption = None,
    models: Annotated[ModelsName, typer.Option(help="Of the nodes.")] = ModelsName.HOMOGENEOUS,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many. [default: 5]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first one.")] = 0,
    iterations: Annotated[int | None, typer.Option(min=1, help="Rounds of training.")] = None,
    prompts: Annotated[int | None, typer.Option(min=1, help="B, problems per round.")] = None,
    group_size: Annotated[int, typer.Option(min=2, help="G, completions per problem.")] = 12,
    nodes: Annotated[int, typer.Option(min=1, help="m.")] = 4,
    malicious: Annotated[int, typer.Option(min=0, help="How many of them attack.")] = 1,
    max_new_tokens: MaxNewTokensOption = None,
    lr: Annotated[float | None, typer.Option(help="Adam's learning rate.")] = None,
    on_reject: OnRejectOption = OnRejectName.DROP,
    model: ModelOption = None,
    every: Annotated[int, typer.Option(min=1, help="Rounds between checkpoints.")] = 10,
    workers: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="One attack, guarded and not.")] = False,
    standard: StandardOption = False,
    paper: PaperOption = False,
    out: Annotated[Path, typer.Option("-o", "--out", file_okay=False)] = Path("grpo-guard-swarm"),
) -> None:
    """Train swarms under attack: attack success and honest reward, round by round.

    Stopped with Ctrl-C it saves what is done; the same command goes on from there.
    """
    _require_torch()
    from grpo_guard.evals.swarm.config import SwarmConfig
    from grpo_guard.evals.swarm.plan import PRESETS, own_setting, plan
    from grpo_guard.registry import UnknownNameError

    switches = {"quick": quick, "standard": standard, "paper": paper}
    chosen = [name for name, on in switches.items() if on]
    if len(chosen) > 1:
        _fail(f"expected one preset, got --{' and --'.join(chosen)}")
    preset = PRESETS[chosen[0] if chosen else "default"]
    try:
        attacks = _names("attack", attack, preset.attacks)
        base = SwarmConfig(
            iterations=iterations or preset.iterations, prompts=prompts or preset.prompts,
            group_size=group_size, nodes=nodes, malicious=malicious, models=models.value,
            on_reject=on_reject.value, lr=SwarmConfig.lr if lr is None else lr,
            setting=setting.value if setting else own_setting(attacks[0]),
        )  # fmt: skip
        specs = plan(
            attacks, _names("defence", defence, preset.defences),
            range(seed, seed + (seeds or preset.seeds)), base,
            setting=setting.value if setting else None, max_new_tokens=max_new_tokens, model=model,
        )  # fmt: skip
    except (ValueError, UnknownNameError) as error:
        _fail(str(error))
    _run(specs, out, every, workers)


def _run(specs: list[Spec], out: Path, every: int, workers: int) -> None:
    from rich.console import Console
    from transformers.utils import logging

    from grpo_guard.evals.report import write_report
    from grpo_guard.evals.results import load_results
    from grpo_guard.evals.swarm.suite import play_all
    from grpo_guard.evals.swarm.training import CheckpointError
    from grpo_guard.evals.swarm_console import reporter
    from grpo_guard.evals.tables import markdown_table

    logging.disable_progress_bar()  # one bar per run, of a second each, between our own
    command = shlex.join(["grpo-guard", *sys.argv[1:]])
    try:
        with reporter(Console(stderr=True), specs) as tell:
            play_all(specs, out, command=command, tell=tell, every=every, workers=workers)
        report = write_report(out)
        table = markdown_table(load_results(out / "results.json"))
        (out / "table.md").write_text(table, encoding="utf-8")
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; what is done is kept in {out}. To go on: {command}", err=True)
        raise typer.Exit(130) from None
    except (CheckpointError, ValueError) as error:
        _fail(str(error))
    except OSError as error:
        typer.echo(
            f"error: {error}\nwhat was saved before is kept in {out}; to go on: {command}", err=True
        )
        raise typer.Exit(1) from None
    typer.echo(table)
    typer.echo(f"wrote {out / 'results.json'}, {report} and {out / 'table.md'}")


def _names(option: str, value: str | None, default: tuple[str, ...]) -> list[str]:
    if value is None:
        return list(default)
    found = [name.strip() for name in value.split(",") if name.strip()]
    return found or _fail(f"--{option}: expected at least one name, got none")


def _require_torch() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        typer.echo(
            f"eval swarm: needs {' and '.join(missing)}; install grpo-guard[evals]", err=True
        )
        raise typer.Exit(1)


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
