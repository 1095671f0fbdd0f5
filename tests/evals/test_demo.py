"""The demo: what it prints, how it ends, and one small real run."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from grpo_guard.evals.cli import demo

pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.evals import demo as demo_module
from grpo_guard.evals.demo import default_config, run_demo, run_name
from grpo_guard.evals.progress import reporter
from grpo_guard.evals.report.console import marked, print_results
from grpo_guard.evals.results import REJECTED_POISON, Example, load_results, parse_results
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.suite import RunError, row_reporter

SPECS = [Spec("text", "none", SwarmConfig(iterations=25)), Spec("none", "none", SwarmConfig())]


def row(iteration: int) -> dict[str, Any]:
    return {"iteration": iteration, "asr": 0.5, "honest_reward": 0.25, "mean_tokens": 30.0}


def test_the_command_exits_1_when_a_run_dies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise RunError("a process ended")

    monkeypatch.setattr(demo_module, "play_all", dies)
    app = typer.Typer()
    app.command()(demo)
    done = CliRunner().invoke(app, ["--out", str(tmp_path / "out"), "--iterations", "1"])
    assert done.exit_code == 1
    assert "demo: a process ended" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_command_reports_an_interruption(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "run_demo", stopped)
    app = typer.Typer()
    app.command()(demo)
    done = CliRunner().invoke(app, ["--out", str(tmp_path), "--quick"])
    assert done.exit_code == 130
    assert "stopped; nothing was written" in done.stderr


def test_iterations_default_to_the_engines() -> None:
    assert default_config().iterations == SwarmConfig().iterations
    assert default_config(3, 5) == SwarmConfig(seed=3, iterations=5)
    assert default_config(quick=True).iterations < SwarmConfig().iterations


def test_plain_lines_come_every_ten_rounds() -> None:
    out = io.StringIO()
    with reporter(Console(file=out, width=60), every=10) as say:
        for iteration in range(25):
            row_reporter(say, run_name)(SPECS[0], row(iteration))
    lines = out.getvalue().splitlines()
    assert [line.split("/")[0].split()[-1] for line in lines] == ["10", "20", "25"]
    assert lines[0].startswith("undefended: 10/25 ")
    assert "honest reward 0.25" in lines[0]
    assert "attack success 50.0 %" in lines[0]


def test_progress_bars_on_a_terminal() -> None:
    out = io.StringIO()
    with reporter(Console(file=out, width=160, force_terminal=True), whole=105) as say:
        row_reporter(say, run_name)(SPECS[1], row(1))
    assert "attack-free" in out.getvalue()
    assert "2/80" in out.getvalue()


def test_bar_and_remaining_time_fit_80_columns() -> None:
    out = io.StringIO()
    long = "a_defence_of_a_very_long_name" * 3
    with reporter(Console(file=out, width=80, force_terminal=True), whole=105) as say:
        row_reporter(say, lambda _: long)(SPECS[0], row(1))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    shown = [line for line in plain.splitlines() if "2/25" in line][-1]
    assert len(shown.rstrip()) <= 80
    assert re.fullmatch(r"a_def.*… [━╸]+\s+2/25\s+[\d:-]+ attack success 50.0.*", shown.rstrip())


def example(text: str, span: tuple[int, int]) -> Example:
    finding = {"kind": "x", "message": "[red]why[/red]\x1b[31m", "char_span": span}
    spoken = {"outcome": "reject", "cause": "judged", "verifier": "v", "findings": [finding]}
    return Example.model_validate({"prompt": "p", "text": text, "span": span, "verdict": spoken})


def test_terminal_text_is_escaped() -> None:
    text = "[bold]x[/bold]\x1b]0;title\x07 POISON \u202eabc"
    span = (text.index("POISON"), text.index("POISON") + len("POISON"))
    shown = marked(example(text, span), colour=False)
    assert "[[POISON]]" in shown.plain
    assert "[bold]x[/bold]<U+001B>]0;title<U+0007>" in shown.plain
    assert "<U+202E>" in shown.plain
    out = io.StringIO()
    run = {
        "attack": "text", "defence": "[red]g\x1b", "seed": 0, "asr": [0.1], "honest_reward": [0.5],
        "rejected": {"honest": 1, "honest_correct": 0, "poisoned": 3},
        "submitted": {"honest": 9, "honest_correct": 4, "poisoned": 3}, "abstained": 0,
        "examples": [example(text, span).model_dump() | {"kind": REJECTED_POISON}],
    }  # fmt: skip
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    print_results(console, parse_results({"runs": [run]}), [])
    assert "\x1b]0" not in out.getvalue()
    assert "[red]g<U+001B>" in out.getvalue()
    assert "[red]why[/red]" in out.getvalue()
    assert "3 / 3" in out.getvalue()


@pytest.mark.slow
def test_real_demo_writes_both_files(tmp_path: Path) -> None:
    out = io.StringIO()
    config = SwarmConfig(iterations=2, prompts=3, max_new_tokens=24)
    run_demo(tmp_path, config=config, console=Console(file=out, width=100), command="again")
    results = load_results(tmp_path / "results.json")
    assert [(run.attack, run.defence) for run in results.runs] == [
        ("none", "none"), ("text", "none"), ("text", "logprob_bound"),
    ]  # fmt: skip
    guarded = results.runs[2]
    assert guarded.submitted is not None
    assert guarded.submitted.poisoned == 2 * 3 * 3
    assert guarded.rejected.poisoned == guarded.submitted.poisoned
    assert guarded.example is not None
    assert guarded.example.span is not None
    start, end = guarded.example.span
    assert guarded.example.text[start:end] == "All hail to the thief"
    assert results.config["command"] == "again"
    assert results.config["policy"]["on_abstain"] == "skip"
    assert {row.metric for row in results.summary} >= {"asr_end", "rejected_honest", "abstained"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<mark>All hail to the thief</mark>" in re.sub(r"</?span[^>]*>", "", page)
    assert "18 / 18" in out.getvalue()
    assert "All hail to the thief" in out.getvalue()
