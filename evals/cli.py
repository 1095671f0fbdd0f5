"""``grpo-guard eval detect``, ``eval report`` and ``demo``. Slow imports are inside functions."""

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn

import typer

from grpo_guard.cli.terminal import echo, exit_with, terminal
from grpo_guard.evals import checkout
from grpo_guard.evals.limits import FailUnder, MaxHonest, end_where_broken

if TYPE_CHECKING:
    from grpo_guard.core.sampling import SamplingSpec
    from grpo_guard.evals.defences.own import GuardFile
    from grpo_guard.evals.detect.config import DetectConfig
    from grpo_guard.evals.results import Summary

app = typer.Typer(no_args_is_help=True, help="Measure what the verifiers catch and what they cost.")

SMOLLM2 = "models/SmolLM2-135M-Instruct"
TRAINING = ("torch", "transformers", "scipy")
"""Packages needed by commands that sample or train."""


_NAMES = {"html": "report.html", "markdown": "table.md"}

VerifiersOption = Annotated[
    str | None,
    typer.Option(
        help="Names separated by commas; only logprob_bound takes options. "
        "Default: logprob_bound; none with --guard."
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH_OR_ID",
        help=f"Policy; for gsm8k by default {SMOLLM2} (make models), else the bundled one. "
        "With --honest: the model that wrote the ids; without it, only texts are judged.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="In GSM8K's format; else from datasets, or generated."),
]
GuardOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GUARD",
        help="Your own guard, FILE.yaml or preset:NAME, on this command's model and sampler; may "
        "be repeated.",
    ),
]
AttacksOption = Annotated[
    str,
    typer.Option(
        "--attacks",
        "--attack",
        help="Names separated by commas; or your own, package.module:Class.",
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option("--n", min=1, help="Honest completions. Default: 200; with --honest all."),
]
MinTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Shorter ones are skipped. Default: 96, bundled 8.")
]
HonestOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Completions of your own model instead of samples, in the format of grpo-guard "
        "verify; guard files then keep their own model and sampler.",
    ),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map", metavar="FIELD=NAME", help="A column of --honest by another name: text=answer."
    ),
]
DtypeOption = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option(
        metavar="DTYPE",
        help="Weights' type while sampling, float32 or bfloat16; verification uses float32.",
    ),
]


TaskOption = Annotated[
    Literal["gsm8k", "word_problems", "python_maths"],
    typer.Option(metavar="TASK", help="What to ask it: gsm8k, word_problems or python_maths."),
]


@app.command()
def detect(
    model: PolicyOption = None,
    task: TaskOption = "gsm8k",
    data: DataOption = None,
    attacks: AttacksOption = "text,math,code",
    guard: GuardOption = None,
    honest: HonestOption = None,
    mapped: MapOption = None,
    n: CountOption = None,
    min_tokens: MinTokensOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest completion.")] = 192,
    temperature: Annotated[float, typer.Option(help="Declared sampler.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Declared sampler; 0 = off.")] = 50,
    top_p: Annotated[float, typer.Option(help="Declared sampler; 1 = off.")] = 1.0,
    dtype: DtypeOption = "float32",
    verifiers: VerifiersOption = None,
    alpha: Annotated[float, typer.Option(help="Budget of false positives per completion.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Decides questions, samples, poison.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Completions sampled at once.")] = 16,
    controls: Annotated[bool, typer.Option(help="Run the negative controls too.")] = True,
    fail_under: FailUnder = None,
    max_honest: MaxHonest = None,
    out: Annotated[Path, typer.Option("-o", "--out", file_okay=False)] = Path("grpo-guard-eval"),
) -> None:
    """Reject rates of honest, poisoned and nonsensical completions, with Wilson intervals.

    An interrupted run resumes where it stopped: completions are kept in DIR/honest.jsonl.
    """
    require("eval detect", *TRAINING)
    from grpo_guard.evals.attacks.registry import on_texts

    poison = _names("--attacks", attacks, on_texts)
    judges = _verifiers(verifiers) if verifiers is not None or not guard else ()
    _require_fitting(alpha, honest, mapped, data, task)
    guards, spec = _guards_and_spec(guard, temperature, top_k, top_p, max_new_tokens)
    chosen = model if honest else _model(model, task)
    from grpo_guard.evals.detect.config import CONTROL_COUNT, MOST, DetectConfig

    count = n or (200 if honest is None else MOST)
    config = DetectConfig(
        attacks=poison,
        spec=spec,
        verifiers=judges,
        guards=guards,
        model=chosen,
        task=task,
        data=data,
        honest=honest,
        mapped=tuple(mapped or ()),
        n=count,
        min_tokens=min_tokens or (96 if task == "gsm8k" else 8),
        dtype=dtype,
        # The sampling dtype is the only source of drift.
        profiles=(dtype,),
        alpha=alpha,
        seed=seed,
        batch_size=batch_size,
        control_count=min(count, CONTROL_COUNT) if controls else 0,
    )
    end_where_broken(_run(config, out), fail_under, max_honest)


@app.command()
def report(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders with a results.json, or such files."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", dir_okay=False, help="Default: report.html or table.md in DIR."
        ),
    ] = None,
    form: Annotated[
        Literal["html", "markdown"],
        typer.Option("--format", help="One self-contained page, or a table."),
    ] = "html",
) -> None:
    """Write one self-contained page, or a Markdown table, from one or more results."""
    require("eval report", "scipy")
    from grpo_guard.evals.report.console import markdown_of
    from grpo_guard.evals.report.html import page_of
    from grpo_guard.evals.results import ResultsError, write_text

    if out is None and (len(places) > 1 or places[0].suffix == ".json"):
        fail("-o: expected a file to write, got none")
    target = out or places[0] / _NAMES[form]
    try:
        write_text(target, (page_of if form == "html" else markdown_of)(places))
    except ResultsError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{target}: {error}", code=1)
    echo(f"wrote {target}")


ANYTHING: Final = {
    "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": [],
}  # fmt: skip
"""Context settings for a command that leaves all options, including ``--help``, to a study."""


@app.command(context_settings=ANYTHING)
def rules(given: typer.Context) -> None:
    """What each kind of finding of the text rules catches and costs. Needs a checkout."""
    study("eval rules", "rules").main(given.args)


def demo(
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="Folder for results.json, report.html.", file_okay=False),
    ] = Path("grpo-guard-demo"),
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Rounds of training, if not the preset's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides problems, samples and poison.")] = 0,
    on_reject: Annotated[
        Literal["drop", "zero"],
        typer.Option(help="Leave a rejected completion out, or give it reward 0."),
    ] = "drop",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A smoke test: too short for the attack to take hold."),
    ] = False,
) -> None:
    """Poison a swarm of four nodes, then guard it: three short GRPO runs on bundled parts."""
    require("demo", *TRAINING)

    from grpo_guard.evals.demo import default_config, run_demo
    from grpo_guard.evals.swarm.suite import RunError

    config = default_config(seed, iterations, on_reject, quick=quick)
    command = f"grpo-guard demo --seed {seed} --iterations {config.iterations}"
    command += " --on-reject zero" if on_reject == "zero" else ""
    command += " --quick" if quick else ""
    try:
        run_demo(out, config=config, console=terminal(), command=command)
    except KeyboardInterrupt:
        exit_with("\nstopped; nothing was written", 130)
    except (RunError, OSError) as error:
        exit_with(f"demo: {error}", 1)


def bench(given: typer.Context) -> None:
    """Time log-prob scoring against a matrix product and other methods. Needs a checkout."""
    study("bench", "bench.cli").main(given.args)


def _verifiers(value: str | None) -> tuple[str, ...]:
    from grpo_guard.core.registry import VERIFIERS, choose, names

    known = names(VERIFIERS)
    chosen = _names("--verifiers", value or "logprob_bound", lambda name: choose(known, name))
    return chosen or fail("--verifiers: expected at least one name, got none")


def _require_fitting(
    alpha: float, honest: Path | None, mapped: list[str] | None, data: Path | None, task: str
) -> None:
    from grpo_guard.evals.defences.early import require_honest

    if not 0 < alpha < 1:
        fail(f"--alpha: expected a number in (0, 1), got {alpha}")
    if mapped and honest is None:
        fail("--map: expected --honest FILE next to it, got none")
    if data is not None and (honest is not None or task == "word_problems"):
        fail(f"--data: expected none with {'--honest' if honest else f'--task {task}'}")
    try:
        require_honest(honest, mapped or ())
    except ValueError as error:
        fail(str(error))


def _guards_and_spec(
    guard: list[str] | None, temperature: float, top_k: int, top_p: float, longest: int
) -> "tuple[tuple[GuardFile, ...], SamplingSpec]":
    from grpo_guard.core.sampling import SamplingSpec
    from grpo_guard.evals.defences.own import guard_files

    try:
        spec = SamplingSpec("transformers", temperature, top_k, top_p, max_new_tokens=longest)
        return guard_files(guard), spec
    except ValueError as error:
        fail(str(error))


def _names(option: str, value: str, check: Callable[[str], object]) -> tuple[str, ...]:
    """Split ``value`` at commas; end the command if any of the names is unknown."""
    from grpo_guard.core.registry import UnknownNameError

    chosen = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    for name in chosen:
        try:
            check(name)
        except UnknownNameError as error:
            fail(f"{option}: {error}")
    return chosen


def _model(given: str | None, task: str) -> str:
    from grpo_guard.evals.policies.bundled import BUNDLED

    if given is None and task == "gsm8k" and not Path(SMOLLM2).is_dir():
        fail(
            f"--model: expected the folder {SMOLLM2} (in a checkout, make models) or a model, got "
            "neither; --task word_problems has a bundled one"
        )
    return given or (SMOLLM2 if task == "gsm8k" else str(BUNDLED[task]))


def _run(config: "DetectConfig", out: Path) -> list["Summary"]:
    import shlex
    import sys

    from grpo_guard.evals.detect.config import NotEnoughError
    from grpo_guard.evals.detect.matrix import matrix_table
    from grpo_guard.evals.detect.run import results_of, run, write_rows
    from grpo_guard.evals.progress import reporter
    from grpo_guard.evals.report.detection import about_rows, passed_text
    from grpo_guard.evals.report.html import write_report
    from grpo_guard.evals.report.tables import print_table
    from grpo_guard.evals.results import REJECTED, Results, Summary, write_json
    from grpo_guard.evals.stats import Rate

    started = time.monotonic()
    try:
        with reporter(terminal(stderr=True)) as say:
            rows = run(config, cache=out / "honest.jsonl", say=say)
        command = shlex.join(["grpo-guard", *sys.argv[1:]])
        results = results_of(config, rows, command=command, seconds=time.monotonic() - started)
        write_json(out / "results.json", results)
        write_rows(out / "rows.jsonl", rows)
    except KeyboardInterrupt:
        exit_with(f"stopped; run it again to continue from {out}", 130)
    except ValueError as error:
        fail(str(error))
    except (NotEnoughError, OSError) as error:
        fail(str(error), code=1)
    print_table(terminal(), matrix_table(rows))
    found = Results.model_validate(results).summary
    for row in found:
        if but := passed_text([row]):
            echo(f"{row.attack}, {row.defence}: of those that passed, {but}")
    for line in about_rows(found):
        echo(line)
    page = write_report(out)
    echo(f"wrote {out / 'results.json'}, {out / 'rows.jsonl'} and {page}")
    judged, played = dict.fromkeys(row.defence for row in found), {row.attack for row in found}
    for name in [name for name in config.attacks if name not in played]:
        echo(f"warning: {name}: no completion has anything that it could poison", err=True)
        nothing = Rate(0, 0).row()
        found += [Summary(attack=name, defence=d, metric=REJECTED, **nothing) for d in judged]
    return found


def study(command: str, name: str) -> ModuleType:
    """Import a module from `studies`; end the command if the studies are not installed."""
    found = checkout.study(name)
    if found is None:
        fail(f"{command}: needs a checkout of the repository; the package has no studies", code=1)
    return found


def require(command: str, *modules: str) -> None:
    """End the command with a message if any of the modules is not installed."""
    from importlib.util import find_spec

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        fail(f"{command}: needs {' and '.join(missing)}: pip install 'grpo-guard[evals]'", code=1)


def fail(message: str, *, code: int = 2) -> NoReturn:
    """End the command with a message; code 2 is for bad input, 1 for a failure."""
    exit_with(f"error: {message}", code)
