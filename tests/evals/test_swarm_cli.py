"""``grpo-guard eval swarm``: names, counts, folders, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.evals.results import load_results
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.plan import Matrix, PlanError, plan
from grpo_guard.evals.swarm.presets import PRESETS
from grpo_guard.evals.swarm.summary import further_rows
from grpo_guard.evals.swarm_cli import swarm

SMALL = ("--seeds", "1", "--prompts", "4", "--group-size", "4", "--max-new-tokens", "30")


def called(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(swarm)
    return CliRunner().invoke(app, list(arguments))


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from grpo_guard.cli.main import app;"
        "r = CliRunner().invoke(app, ['eval', 'swarm', '--help']); assert r.exit_code == 0, r;"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--attack", "texd"), "did you mean 'text'"),
        (("--defence", "homogenous"), "did you mean 'homogeneous'"),
        (("--attack", " , "), "--attack: expected at least one name"),
        (("--attack", "math", "--setting", "horizontal"), "math: expected the vertical setting"),
        (("--models", "heterogeneous"), "homogeneous: expected a homogeneous swarm"),
        (("--malicious", "4"), "malicious: expected 0 to 3 of 4 nodes"),
        (("--group-size", "10"), "group_size: expected a multiple of nodes"),
        (("--attack", "math", "--prompts", "6"), "prompts: expected a multiple of nodes"),
        (("--quick", "--standard"), "expected one preset"),
        (("--lr", "-1"), "lr: expected"),
    ],
)
def test_bad_input_exits_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = called(*arguments, "-o", str(tmp_path / "out"))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_plans_have_an_attack_free_run_beside_each_setting() -> None:
    base = SwarmConfig(iterations=5)
    specs = plan(Matrix(["text", "math"], ["homogeneous", "none"], [3, 4]), base)
    assert len(specs) == 2 * (2 + 2 * 2)
    first = specs[:6]
    assert {spec.config.seed for spec in first} == {3}
    assert [spec.attack for spec in first[:2]] == ["none", "none"]
    assert {spec.config.setting for spec in first[:2]} == {"horizontal", "vertical"}
    assert [spec.defence for spec in first[2:]] == ["none"] * 2 + ["homogeneous"] * 2
    assert len({spec.label for spec in specs}) == len(specs)


def test_counts_are_checked_in_the_attacks_own_setting(tmp_path: Path) -> None:
    from grpo_guard.evals.swarm.plan import own_setting

    assert own_setting("math") == "vertical"
    base = SwarmConfig(nodes=16, prompts=32, setting=own_setting("math"))
    specs = plan(Matrix(["math"], ["none"], [0]), base)
    assert {spec.config.setting for spec in specs} == {"vertical"}
    result = called(
        "--nodes", "16", "--prompts", "32", "--attack", "math,text", "-o", str(tmp_path)
    )
    assert result.exit_code == 2
    assert "group_size: expected a multiple of nodes (16)" in result.stderr


def test_presets_are_plans() -> None:
    for name, preset in PRESETS.items():
        base = SwarmConfig(iterations=preset.iterations, prompts=preset.prompts)
        specs = plan(Matrix(preset.attacks, preset.defences, range(preset.seeds)), base)
        assert specs, name
    with pytest.raises(PlanError, match="homogeneous"):
        plan(Matrix(["text"], ["homogeneous"], [0]), SwarmConfig(models="heterogeneous"))


def test_a_run_writes_results_report_and_table(tmp_path: Path) -> None:
    arguments = (*SMALL, "--iterations", "2", "--defence", "none,logprob_bound", "-o")
    result = called(*arguments, str(tmp_path))
    assert result.exit_code == 0, result.output
    results = load_results(tmp_path / "results.json")
    cells = [(run.attack, run.defence) for run in results.runs]
    assert cells == [("none", "none"), ("text", "none"), ("text", "logprob_bound")]
    assert all(len(run.asr) == 2 for run in results.runs)
    found = {row.metric for row in results.summary}
    wanted = {"asr_highest", "held_out_accuracy", "length_ratio_end", "guard_share_of_time"}
    assert wanted <= found
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "| text |" in (tmp_path / "table.md").read_text()
    assert not list(tmp_path.rglob("checkpoint.pt"))
    before = (tmp_path / "results.json").read_bytes()
    again = called(*arguments, str(tmp_path))  # nothing is left to do
    assert again.exit_code == 0
    after = json.loads((tmp_path / "results.json").read_bytes())
    assert after["runs"] == json.loads(before)["runs"]
    other = called(*SMALL, "--iterations", "3", "--defence", "none", "-o", str(tmp_path))
    assert other.exit_code == 2
    assert "choose another folder" in other.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, workers: str) -> None:
    command = [
        sys.executable, "-m", "grpo_guard", "eval", "swarm", *SMALL, "--iterations", "12",
        "--defence", "none", "--workers", workers, "-o", str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not _rounds(tmp_path):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "To go on: grpo-guard eval swarm" in said
    assert list(tmp_path.rglob("checkpoint.pt")) or list(tmp_path.rglob("run.json"))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    results = load_results(tmp_path / "results.json")
    assert all(len(run.asr) == 12 for run in results.runs)
    whole = tmp_path / "whole"
    again = subprocess.run(
        [*command[:-1], str(whole)], capture_output=True, text=True, env=environment, timeout=500
    )
    assert again.returncode == 0, again.stderr
    expected = load_results(whole / "results.json")
    assert [r.honest_reward for r in results.runs] == [r.honest_reward for r in expected.runs]
    assert [r.asr for r in results.runs] == [r.asr for r in expected.runs]


def _rounds(folder: Path) -> bool:
    return any('"round"' in path.read_text() for path in folder.rglob("events.jsonl"))


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_guard.evals.swarm import suite

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(suite, "play", full)
    result = called(*SMALL, "--iterations", "2", "-o", str(tmp_path))
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert "to go on" in result.stderr


def test_summary_compares_lengths_with_the_attack_free_run() -> None:
    config = SwarmConfig(iterations=20)
    common = {"setting": "horizontal", "models": "homogeneous", "seed": 0, "seconds": 10.0,
              "guard_seconds": 4.0, "held_out": {"correct": 3, "total": 4},
              "excluded": {}}  # fmt: skip
    free = {**common, "attack": "none", "defence": "none", "asr": [0.0] * 20,
            "mean_tokens": [10.0] * 20}  # fmt: skip
    long = {**common, "attack": "dos", "defence": "max_length", "asr": [0.0] * 19 + [0.5],
            "mean_tokens": [10.0] * 10 + [25.0] * 10, "excluded": {"node-3": 7}}  # fmt: skip
    rows = {(r["attack"], r["metric"]): r for r in further_rows([free, long])}
    assert rows["dos", "length_ratio_end"]["mean"] == 2.5
    assert rows["dos", "length_ratio_highest"]["mean"] == 2.5
    assert rows["dos", "asr_highest"]["mean"] == 0.5
    assert rows["dos", "guard_share_of_time"]["mean"] == 0.4
    assert rows["dos", "first_exclusion_round"]["mean"] == 7
    assert rows["dos", "held_out_accuracy"]["n"] == 4
    assert Spec("dos", "max_length", config).label == "dos-max_length-horizontal-homogeneous-seed0"
