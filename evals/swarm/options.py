"""The options of ``grpo-guard eval swarm``: their types, and all of them as one object."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class SettingName(StrEnum):
    """Who chooses the problems."""

    HORIZONTAL = "horizontal"
    VERTICAL = "vertical"


class ModelsName(StrEnum):
    """Whether honest nodes hold the same weights."""

    HOMOGENEOUS = "homogeneous"
    HETEROGENEOUS = "heterogeneous"


class EngineName(StrEnum):
    """Where nodes compute."""

    LOCAL = "local"
    RAY = "ray"


_NAMES = "Names with commas."

Attacks = Annotated[str | None, typer.Option(help=f"{_NAMES} [default: text]")]
Defences = Annotated[str | None, typer.Option(help=f"{_NAMES} [default: none,homogeneous]")]
Setting = Annotated[
    SettingName | None, typer.Option(help="For all attacks. [default: each attack's own]")
]
Models = Annotated[ModelsName, typer.Option(help="Of the nodes.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many. [default: 5]")]
Seed = Annotated[int, typer.Option(min=0, help="The first one.")]
Iterations = Annotated[int | None, typer.Option(min=1, help="Rounds of training.")]
Prompts = Annotated[int | None, typer.Option(min=1, help="B, problems per round.")]
GroupSize = Annotated[int, typer.Option(min=2, help="G, completions per problem.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="m. [default: 4]")]
Malicious = Annotated[int | None, typer.Option(min=0, help="How many of them attack. [default: 1]")]
Share = Annotated[
    str | None,
    typer.Option(metavar="F/M,...", help="Malicious of all nodes, a row each, in place of both."),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Longest completion. [default: what the attack needs]")
]
Temperature = Annotated[float, typer.Option(min=0.05, max=5.0, help="Of the declared sampler.")]
TopK = Annotated[int, typer.Option(min=1, help="Of the declared sampler, and of paper_logit.")]
LearningRate = Annotated[float | None, typer.Option(help="Adam's learning rate.")]
OnReject = Annotated[
    str,
    typer.Option(
        metavar="drop|zero|no_gain",
        help="Leave it out, reward 0, or out where it gains; with commas.",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(help="word_problems, gsm8k or python_maths. [default: each attack's own]"),
]
Data = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Problems as JSONL in GSM8K's format."),
]
Calc = Annotated[
    bool, typer.Option("--calc/--no-calc", help="python_maths: the attacker's library resolves.")
]
Policy = Annotated[
    str | None,
    typer.Option(metavar="NAME|FOLDER|ID", help="What is trained. [default: the task's own]"),
]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda. [default: cpu for bundled policies]")
]
Engine = Annotated[EngineName, typer.Option(help="In one process, or each node a Ray actor.")]
Every = Annotated[int, typer.Option(min=1, help="Rounds between checkpoints.")]
Workers = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
Quick = Annotated[bool, typer.Option("--quick", help="One attack, guarded and not.")]
Standard = Annotated[
    bool, typer.Option("--standard", help="The paper's attacks, four defences, two seeds.")
]
Paper = Annotated[
    bool, typer.Option("--paper", help="The paper's batch, rounds and five seeds; hours.")
]
Out = Annotated[Path, typer.Option("-o", "--out", file_okay=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmOptions:
    """All options as they were given; None where one was not."""

    attack: str | None
    defence: str | None
    setting: SettingName | None
    models: ModelsName
    seeds: int | None
    seed: int
    iterations: int | None
    prompts: int | None
    group_size: int
    nodes: int | None
    malicious: int | None
    share: str | None
    max_new_tokens: int | None
    temperature: float
    top_k: int
    lr: float | None
    on_reject: str
    task: str | None
    data: Path | None
    calc: bool
    policy: str | None
    device: str | None
    engine: EngineName
    every: int
    workers: int
    quick: bool
    standard: bool
    paper: bool
    out: Path
