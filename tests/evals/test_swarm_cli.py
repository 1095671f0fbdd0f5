"""``grpo-guard eval swarm``: names, counts, folders, and the state after an interruption."""

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

from grpo_guard.evals.cli_swarm import swarm
from grpo_guard.evals.report.summary import summarise
from grpo_guard.evals.results import load_results, parse_results
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.plan import Matrix, PlanError, plan
from grpo_guard.evals.swarm.request import PRESETS

SMALL = ("--seeds", "1", "--prompts", "4", "--group-size", "4", "--max-new-tokens", "30")


def called(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(swarm)
    return CliRunner().invoke(app, list(arguments))


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
        (("--task", "gsm9k"), "--task: expected one of word_problems, "),
        (("--task", "gsm8k"), "gsm8k: expected --policy"),
        (("--data", __file__), "--data: the task word_problems generates its problems"),
        (
            ("--task", "gsm8k", "--policy", "word_problems", "--data", __file__),
            "test_swarm_cli.py:1",
        ),
        (("--policy", "word_problem"), "did you mean 'word_problems'"),
        (("--policy", "./nowhere"), "found no folder ./nowhere"),
        (("--policy", "word_problems,"), "--policy: expected names separated by commas"),
        (("--policy", "word_problems,word_problems"), "expected one in a homogeneous swarm"),
        (("--device", "gpu"), "--device: expected cpu, cuda"),
        (("--malicious", "7"), "malicious: expected 0 to 3"),
        (("--share", "1/4,half"), "--share: expected malicious/nodes such as 1/4, got 'half'"),
        (("--share", "4/4"), "malicious: expected 0 to 3 of 4 nodes"),
        (("--share", "1/16"), "group_size: expected a multiple of nodes (16)"),
        (("--share", "1/4", "--nodes", "4"), "--share: expected neither"),
        (("--leaves", "80"), "leaves: expected 1 to 79 of 80 rounds, got 80"),
        (("--share", "0/0"), "nodes: expected at least 1"),
        (("--on-reject", "drop,zerro"), "did you mean 'zero'"),
        (("--on-reject", ""), "--on-reject: expected at least one name"),
    ],
)
def test_invalid_input_exits_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = called(*arguments, "-o", str(tmp_path / "out"))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_plans_have_an_attack_free_run_for_each_setting() -> None:
    base = SwarmConfig(iterations=5)
    specs = plan(Matrix(["text", "math"], ["homogeneous", "none"], [3, 4]), base)
    assert len(specs) == 2 * (2 * 2 + 2 * 2)
    first = specs[:8]
    assert {spec.config.seed for spec in first} == {3}
    assert [spec.attack for spec in first[:4]] == ["silent"] * 4
    # The homogeneous stack samples with a shared seed, and so do its comparison runs.
    beside = {(spec.config.setting, spec.defence) for spec in first[:4]}
    assert beside == {(s, d) for s in ("horizontal", "vertical") for d in ("none", "coin")}
    assert [spec.defence for spec in first[4:]] == ["none"] * 2 + ["homogeneous"] * 2
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


@pytest.mark.slow
def test_the_declared_sampler_is_an_option(tmp_path: Path) -> None:
    result = called(
        *("--defence", "paper_logit", "--seeds", "1", "--iterations", "2", "--prompts", "4"),
        *("--temperature", "0.8", "--top-k", "3", "-o", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert {(r["config"]["temperature"], r["config"]["top_k"]) for r in runs} == {(0.8, 3)}
    (guarded,) = [r for r in runs if r["defence"] == "paper_logit"]
    # The check uses the sampler's own k: all honest draws lie inside.
    assert guarded["rejected"]["honest"] == 0
    assert guarded["rejected"]["poisoned"] == guarded["submitted"]["poisoned"] > 0


def test_presets_expand_to_plans() -> None:
    for name, preset in PRESETS.items():
        base = SwarmConfig(iterations=preset.iterations, prompts=preset.prompts)
        specs = plan(Matrix(preset.attacks, preset.defences, range(preset.seeds)), base)
        assert specs, name
    with pytest.raises(PlanError, match="homogeneous"):
        plan(Matrix(["text"], ["homogeneous"], [0]), SwarmConfig(models="heterogeneous"))


@pytest.mark.slow
def test_an_attack_needs_something_to_poison(tmp_path: Path) -> None:
    pytest.importorskip("grpo_guard.evals.sandbox.sandbox")
    out = tmp_path / "out"
    said = called("--attack", "math", "--task", "python_maths", "-o", str(out))
    if said.exit_code == 1:
        pytest.skip(said.stderr)
    assert said.exit_code == 2, said.output
    assert "math: expected 16 problems with 2+2 or 2*2" in said.stderr
    assert not out.exists()


def test_attacks_are_played_on_their_own_tasks() -> None:
    specs = plan(Matrix(["text", "code"], ["none"], [0]), SwarmConfig())
    tasks = {(spec.attack, spec.workload.task) for spec in specs}
    assert tasks == {
        ("silent", "word_problems"), ("text", "word_problems"),
        ("silent", "python_maths"), ("code", "python_maths"),
    }  # fmt: skip
    assert len({spec.label for spec in specs}) == len(specs) == 4
    moved = plan(Matrix(["text", "code"], ["none"], [0], task="gsm8k"), SwarmConfig())
    assert {spec.workload.task for spec in moved} == {"gsm8k"}


def test_shares_and_rules_are_rows_of_their_own() -> None:
    matrix = Matrix(
        ["text"], ["none", "screens"], [0], shares=[(1, 2), (1, 4), (1, 12)],
        on_reject=["drop", "zero"],
    )  # fmt: skip
    specs = plan(matrix, SwarmConfig())
    assert len({spec.label for spec in specs}) == len(specs) == 3 + 3 + 2 * 3
    assert len({(spec.shown_attack, spec.shown_defence) for spec in specs}) == len(specs)
    names = {(spec.shown_attack, spec.shown_defence) for spec in specs}
    assert {("text (1/12)", "none"), ("text", "screens (zero)")} <= names
    assert [spec.shown_attack for spec in specs[:3]] == [
        "silent (1/2)", "silent", "silent (1/12)",
    ]  # fmt: skip
    (silent, *_, twelfth) = plan(
        Matrix(["text"], ["none"], [0], shares=[(1, 4), (1, 12)]), SwarmConfig(leaves=20)
    )
    assert silent.shown_attack == "silent (leaves after 20)"
    assert twelfth.shown_attack == "text (1/12, leaves after 20)"
    assert twelfth.label == "text-none-horizontal-homogeneous-1of12-leaves20-seed0"
    assert twelfth.identity()["config"]["leaves"] == 20
    # As in folders written by earlier versions.
    assert "leaves" not in specs[0].identity()["config"]
    alone = plan(Matrix(["none"], ["none"], [0]), SwarmConfig())
    assert [(spec.attack, spec.share) for spec in alone] == [("none", "0/4")]
    nobody = plan(Matrix(["withholding"], ["none"], [0], shares=[(0, 4)]), SwarmConfig())
    assert [spec.attack for spec in nobody] == ["none", "withholding"]
    assert plan(Matrix(["text", "text"], ["none", "none"], [0]), SwarmConfig()) == plan(
        Matrix(["text"], ["none"], [0]), SwarmConfig()
    )


def test_recipes_match_the_settings_of_the_paper() -> None:
    from grpo_guard.evals.policies.named import RECIPE_ROOM, RECIPES

    paper = PRESETS["paper"]
    assert (paper.prompts, paper.iterations, RECIPE_ROOM) == (32, 100, 1024)
    for name, recipe in RECIPES.items():
        assert recipe.model.startswith("Qwen/"), name
        assert recipe.attacks, name


def test_a_run_writes_results_report_and_table(tmp_path: Path) -> None:
    arguments = (*SMALL, "--iterations", "2", "--defence", "none,logprob_bound", "-o")
    result = called(*arguments, str(tmp_path))
    assert result.exit_code == 0, result.output
    results = load_results(tmp_path / "results.json")
    cells = [(run.attack, run.defence) for run in results.runs]
    assert cells == [("silent", "none"), ("text", "none"), ("text", "logprob_bound")]
    assert all(len(run.asr) == 2 for run in results.runs)
    found = {row.metric for row in results.summary}
    wanted = {"asr_highest", "held_out_accuracy", "length_ratio_end", "guard_share_of_time"}
    assert wanted <= found
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "| text |" in (tmp_path / "table.md").read_text()
    assert not list(tmp_path.rglob("checkpoint.pt"))
    before = (tmp_path / "results.json").read_bytes()
    again = called(*arguments, str(tmp_path))  # nothing left to do
    assert again.exit_code == 0
    after = json.loads((tmp_path / "results.json").read_bytes())
    assert after["runs"] == json.loads(before)["runs"]
    other = called(*SMALL, "--iterations", "3", "--defence", "none", "-o", str(tmp_path))
    assert other.exit_code == 2
    assert "one with iterations 2 in place of 3; choose another folder" in other.stderr
    for path in tmp_path.rglob("run.json"):  # as a version without tasks wrote it
        kept = json.loads(path.read_text())
        for name in ("task", "policy", "data", "calc", "dtype"):
            del kept["identity"][name]
        path.write_text(json.dumps(kept))
    old = called(*arguments, str(tmp_path))
    assert old.exit_code == 2
    assert "one with task unsaid in place of" in old.stderr


@pytest.mark.slow
def test_a_sweep_is_one_results_file(tmp_path: Path) -> None:
    result = called(
        *SMALL, "--iterations", "1", "--share", "1/2,1/4", "--on-reject", "drop,zero",
        "--defence", "none,screens", "-o", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    runs = load_results(tmp_path / "results.json").runs
    cells = [(run.attack, run.defence) for run in runs]
    assert len(set(cells)) == len(cells) == 2 + 2 + 4
    assert ("text (1/2)", "screens (zero)") in cells
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["config"]["task"] == "word_problems"
    assert data["config"]["policy"] == "word_problems_wordy"
    assert {run["share"] for run in data["runs"]} == {"1/2", "1/4"}
    table = (tmp_path / "table.md").read_text()
    assert "text (1/2)" in table
    assert "screens (zero)" in table


@pytest.mark.slow
def test_folder_can_be_a_policy(tmp_path: Path) -> None:
    from tests.evals.tiny_eval_policy import save_tiny

    folder = save_tiny(tmp_path / "policy")
    arguments = (*SMALL, "--iterations", "1", "--defence", "none", "--policy", str(folder), "-o")
    result = called(*arguments, str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out/results.json").read_text())
    assert {run["policy"] for run in data["runs"]} == {str(folder)}
    assert {run["config"]["lr"] for run in data["runs"]} == {2e-5}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, workers: str) -> None:
    command = [
        sys.executable, "-m", "grpo_guard", "eval", "swarm", *SMALL, "--iterations", "12",
        "--defence", "none", "--workers", workers, "-o", str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # A shell that runs the tests in its background has them ignore Ctrl-C, and their children too.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not _rounds(tmp_path):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "To continue: grpo-guard eval swarm" in said
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


@pytest.mark.slow
def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "grpo_guard", "eval", "swarm", *SMALL, "--iterations", "500",
        "--defence", "none", "--workers", "2", "-o", str(tmp_path),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not _rounds(tmp_path):
        time.sleep(0.05)
    process.kill()
    # The children hold the other end, which closes when the last of them ends.
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """Limit files to 1 MB, which no checkpoint fits into."""
    full = (
        "import resource, signal, sys; from grpo_guard.cli.main import app;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6));"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); app(sys.argv[1:])"
    )
    arguments = [
        "eval", "swarm", *SMALL, "--iterations", "3", "--defence", "none", "--every", "2",
        "-o", str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", full, *arguments],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "checkpoint.pt: expected to be writable, got" in done.stderr
    assert "to continue:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("checkpoint.pt"))
    again = subprocess.run(
        [sys.executable, "-m", "grpo_guard", *arguments],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_guard.evals.swarm import suite

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(suite, "play", full)
    result = called(*SMALL, "--iterations", "2", "-o", str(tmp_path))
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert "to continue" in result.stderr


def test_summary_compares_lengths_with_the_attack_free_run() -> None:
    config = SwarmConfig(iterations=20)
    common = {"setting": "horizontal", "models": "homogeneous", "seed": 0, "seconds": 10.0,
              "guard_seconds": 4.0, "held_out": {"correct": 3, "total": 4},
              "excluded": {}, "honest_reward": [0.5] * 20,
              "rejected": {"honest": 0, "honest_correct": 0, "poisoned": 0}}  # fmt: skip
    free = {**common, "attack": "none", "defence": "none", "asr": [0.0] * 20,
            "mean_tokens": [10.0] * 20}  # fmt: skip
    long = {**common, "attack": "dos", "defence": "max_length", "asr": [0.0] * 19 + [0.5],
            "mean_tokens": [10.0] * 10 + [25.0] * 10, "excluded": {"node-3": 7}}  # fmt: skip
    data = {"runs": [free, long]}
    rows = {(r["attack"], r["metric"]): r for r in summarise(parse_results(data))}
    assert rows["dos", "length_ratio_end"]["mean"] == 2.5
    assert rows["dos", "length_ratio_highest"]["mean"] == 2.5
    assert rows["dos", "asr_highest"]["mean"] == 0.5
    assert rows["dos", "guard_share_of_time"]["mean"] == 0.4
    assert rows["dos", "first_exclusion_round"]["mean"] == 7
    assert rows["dos", "held_out_accuracy"]["n"] == 4
    assert Spec("dos", "max_length", config).label == "dos-max_length-horizontal-homogeneous-seed0"
