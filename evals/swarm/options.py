"""The options of ``grpo-guard eval swarm``: this class defines its command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_guard.evals.limits import FailUnder, MaxHonest
from grpo_guard.evals.swarm.config import EngineName, Models, Setting

_NAMES = "Names separated by commas, see --list"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmOptions:
    """The options as given; None for any option that was not given."""

    attack: Annotated[
        str | None,
        typer.Option(
            "--attack",
            "--attacks",
            help=f"{_NAMES}; or your own, package.module:Class. "
            "Default: text; --standard and --paper: text,math,code,dos.",
        ),
    ] = None
    defence: Annotated[
        str | None,
        typer.Option(
            help=f"{_NAMES}. Default: none,homogeneous; none with --guard; --standard and "
            "--paper: more."
        ),
    ] = None
    guard: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GUARD",
            help="Your own guard, FILE.yaml or preset:NAME, on the nodes' model and sampler; may "
            "be repeated.",
        ),
    ] = None
    setting: Annotated[
        Setting | None,
        typer.Option(
            metavar="SETTING",
            help="horizontal or vertical, for all attacks. Default: each attack's own.",
        ),
    ] = None
    models: Annotated[
        Models, typer.Option(metavar="MODELS", help="homogeneous or heterogeneous nodes.")
    ] = "homogeneous"
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many. Default: 5; --quick 1, --standard 2.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds of training. Default: 80; --quick 40, --standard and --paper 100."
        ),
    ] = None
    prompts: Annotated[
        int | None, typer.Option(min=1, help="B, problems per round. Default: 16; --paper 32.")
    ] = None
    group_size: Annotated[int, typer.Option(min=2, help="G, completions per problem.")] = 12
    nodes: Annotated[int | None, typer.Option(min=1, help="m. Default: 4.")] = None
    malicious: Annotated[
        int | None, typer.Option(min=0, help="How many nodes attack. Default: 1.")
    ] = None
    share: Annotated[
        str | None,
        typer.Option(
            metavar="F/M,...", help="Malicious nodes of all, one row each; replaces these two."
        ),
    ] = None
    leaves: Annotated[
        int | None, typer.Option(min=1, help="Rounds after which the malicious nodes leave.")
    ] = None
    guard_from: Annotated[
        int, typer.Option(min=0, help="Rounds before the guards are switched on.")
    ] = 0
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest completion. Default: the attack's need.")
    ] = None
    temperature: Annotated[
        float, typer.Option(min=0.05, max=5.0, help="The declared sampler's temperature.")
    ] = 1.0
    top_k: Annotated[
        int, typer.Option(min=0, help="For the declared sampler and paper_logit; 0 = off.")
    ] = 50
    lr: Annotated[
        float | None,
        typer.Option(help="Adam's learning rate. Default: 1.5e-3 for bundled policies, else 2e-5."),
    ] = None
    on_reject: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="drop (leave it out), zero (reward 0) or no_gain (out if it gains); separated by "
            "commas. Default: drop; for a guard file its own.",
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(help="word_problems, gsm8k or python_maths. Default: each attack's own."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Problems as JSONL in GSM8K's format."),
    ] = None
    calc: Annotated[
        bool,
        typer.Option("--calc/--no-calc", help="python_maths: provide the attacker's library."),
    ] = True
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME|FOLDER|ID", help="What is trained. Default: the task's own."),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. Default: cpu for bundled policies.")
    ] = None
    engine: Annotated[
        EngineName, typer.Option(help="One process, or each node as a Ray actor.")
    ] = "local"
    every: Annotated[int, typer.Option(min=1, help="Rounds between checkpoints.")] = 10
    workers: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1
    quick: Annotated[bool, typer.Option("--quick", help="One attack, guarded and not.")] = False
    standard: Annotated[
        bool, typer.Option("--standard", help="The paper's attacks, four defences, two seeds.")
    ] = False
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's batch, rounds and five seeds; hours.")
    ] = False
    recipe: Annotated[
        Literal["authors"] | None,
        typer.Option(help="Train and count as in the paper's own code."),
    ] = None
    fail_under: FailUnder = None
    max_honest: MaxHonest = None
    list_names: Annotated[
        bool, typer.Option("--list", help="List attacks, defences and tasks, and exit.")
    ] = False
    out: Annotated[Path, typer.Option("-o", "--out", file_okay=False)] = Path("grpo-guard-swarm")
