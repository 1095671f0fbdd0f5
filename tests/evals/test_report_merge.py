"""Several results in one page, and the command that merges them."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from grpo_guard.evals.cli import report
from grpo_guard.evals.report.merge import load_all, merged, pooled
from grpo_guard.evals.results import ResultsError, write_json
from tests.evals.report_samples import Page, page, results, run


def called(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(arguments))


def second() -> dict[str, Any]:
    """Another seed of the same attack, with an attack-free run that both files have."""
    data = results()
    extra = [one | {"seed": 1} for one in data["runs"]]
    return {"config": {"command": "grpo-guard second"}, "runs": [data["runs"][0], *extra]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    write_json(tmp_path / "a" / "results.json", results())
    write_json(tmp_path / "b" / "results.json", second())
    return tmp_path / "a", tmp_path / "b"


def test_runs_of_all_files_count_once(folders: tuple[Path, Path]) -> None:
    found = merged(load_all([*folders, folders[0]]))
    assert [(one.attack, one.defence, one.seed) for one in found.runs] == [
        ("none", "none", 0), ("text", "none", 0), ("text", "logprob_bound", 0),
        ("none", "none", 1), ("text", "none", 1), ("text", "logprob_bound", 1),
    ]  # fmt: skip


def test_conflicting_results_of_a_run_are_an_error(folders: tuple[Path, Path]) -> None:
    changed = second()
    changed["runs"][0] = changed["runs"][0] | {"asr": [0.5] * 20}
    write_json(folders[1] / "results.json", changed)
    with pytest.raises(ResultsError, match=r"b/results\.json: runs: expected the same results as"):
        merged(load_all(folders))
    result = called(*map(str, folders), "-o", str(folders[0] / "x.html"))
    assert result.exit_code == 2
    assert "report these files separately" in result.stderr
    assert not (folders[0] / "x.html").exists()


def test_attack_free_runs_that_differ_are_an_error_too(folders: tuple[Path, Path]) -> None:
    """Their attack success is zero in both; their rewards and lengths differ."""
    changed = second()
    changed["runs"][0] = changed["runs"][0] | {"honest_reward": [0.9] * 20}
    write_json(folders[1] / "results.json", changed)
    with pytest.raises(ResultsError, match="attack 'none', defence 'none', seed 0, got others"):
        merged(load_all(folders))


def test_attack_free_run_with_most_room_counts(folders: tuple[Path, Path]) -> None:
    for folder, room, reward in zip(folders, (128, 96), (0.8, 0.7), strict=True):
        data = results()
        data["runs"] = [
            one | {"honest_reward": [reward] * 20, "config": {"lr": 1, "max_new_tokens": room}}
            for one in data["runs"][:1]
        ]
        write_json(folder / "results.json", data)
    for order in (folders, folders[::-1]):
        (only,) = merged(load_all(order)).runs
        assert only.settings["max_new_tokens"] == 128
        assert only.honest_reward[0] == 0.8


def test_seeds_with_other_settings_are_not_pooled(folders: tuple[Path, Path]) -> None:
    for seed, (folder, rate) in enumerate(zip(folders, (0.001, 0.002), strict=True)):
        one = run("text", "none", [0.1], [0.5], seed=seed, config={"seed": seed, "lr": rate})
        write_json(folder / "results.json", {"runs": [one]})
    with pytest.raises(ResultsError, match=r"expected the settings of .*a/results\.json.* lr;"):
        merged(load_all(folders))


def test_parts_of_a_plan_count_as_seeds_of_one_experiment(folders: tuple[Path, Path]) -> None:
    rewards = {0: 0.7, 1: 0.69, 2: 0.71}
    for folder, seeds in zip(folders, ((0,), (1, 2)), strict=True):
        runs = [
            run(attack, defence, [asr] * 20, [rewards[seed]] * 20, seed=seed,
                config={"seed": seed, "lr": 0.001, "on_reject": rule})
            for seed in seeds
            for attack, defence, asr, rule in (
                ("none", "none", 0.0, "drop"), ("text", "none", 0.9 + seed / 100, "drop"),
                ("text", "homogeneous (zero)", 0.0, "zero"),
            )
        ]  # fmt: skip
        write_json(folder / "results.json", {"runs": runs})
    target = folders[0] / "both.md"
    assert called(*map(str, folders), "--format", "markdown", "-o", str(target)).exit_code == 0
    written = target.read_text(encoding="utf-8")
    assert "| text | undefended | 3 | 91.0 % (88.5–93.5 %; 3 seeds) | 2,730 / 3,000 =" in written
    guarded = [row for row in written.splitlines() if row.startswith("| text | guarded |")]
    assert "| 0.700 (0.675–0.725; 3 seeds) | +0.0 % (3 equal seeds; within ±5 %) |" in guarded[1]
    assert guarded[-1].endswith("| held |")


def test_guard_is_not_judged_by_an_attack_under_other_settings(folders: tuple[Path, Path]) -> None:
    for folder, defence, rate in zip(folders, ("none", "mine"), (0.001, 0.002), strict=True):
        one = run("text", defence, [0.1], [0.5], config={"lr": rate})
        write_json(folder / "results.json", {"runs": [one]})
    with pytest.raises(ResultsError, match="defence 'mine', got a different lr;"):
        merged(load_all(folders))


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400])
def test_absurd_number_is_an_error_that_names_the_file(tmp_path: Path, number: str) -> None:
    text = json.dumps(results()).replace('"honest_correct": 0', f'"honest_correct": {number}')
    assert number in text
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ResultsError, match=r"results\.json"):
        load_all([tmp_path])


@pytest.mark.parametrize("name", ["asr", "honest_reward", "mean_tokens"])
def test_absurdly_long_curve_is_refused(tmp_path: Path, name: str) -> None:
    data = results()
    data["runs"][0][name] = [1e308] * 20
    write_json(tmp_path / "results.json", data)
    with pytest.raises(ResultsError, match=rf"results\.json: runs\.0\.{name}\.0: expected"):
        load_all([tmp_path])


def test_different_tasks_are_kept_apart(folders: tuple[Path, Path]) -> None:
    own = run("text", "none", [0.1], [0.5], task="gsm8k", policy="a/model")
    write_json(folders[1] / "results.json", {"runs": [own]})
    found = merged(load_all(folders))
    assert {(one.task, one.policy) for one in found.runs} == {("", ""), ("gsm8k", "a/model")}


def test_page_says_how_each_file_was_made(folders: tuple[Path, Path]) -> None:
    target = folders[0].parent / "both.html"
    done = called(*map(str, folders), "-o", str(target))
    assert done.exit_code == 0, done.output
    shown = Page(target.read_text(encoding="utf-8"))
    assert "2 seeds" in shown.text
    assert "grpo-guard second" in shown.text
    assert "grpo-guard demo --seed 7" in shown.text


def test_detection_result_appears_next_to_runs(folders: tuple[Path, Path]) -> None:
    row = {"attack": "honest", "defence": "v", "metric": "rejected", "mean": 0.0, "n": 9}
    detection = {
        "runs": [], "summary": [row | {"low": 0.0, "high": 0.3, "rejected": 0}],
        "honest_p_values": {"v": [0.2, 1.0]}, "p_values": {"v": {"text": [0.0, 0.3]}},
    }  # fmt: skip
    write_json(folders[1] / "results.json", detection)
    target = folders[0].parent / "both.html"
    assert called(*map(str, folders), "-o", str(target)).exit_code == 0
    text = Page(target.read_text(encoding="utf-8")).text
    assert "Rejected, by kind of completion" in text
    assert "Area under the curve" in text
    assert "Guarded, at most" in text


def detection(seed: int, rejected: int) -> dict[str, Any]:
    row = {"attack": "honest", "defence": "v", "metric": "rejected", "mean": rejected / 9, "n": 9}
    return {
        "config": {"task": "gsm8k", "seed": seed, "command": f"detect --seed {seed}"}, "runs": [],
        "summary": [row | {"low": 0.0, "high": 0.9, "rejected": rejected, "abstained": 1}],
        "honest_p_values": {"v": [0.2, 1.0]}, "p_values": {"v": {"text": [0.0, 0.3]}},
    }  # fmt: skip


def test_poison_that_earns_nothing_is_added_up(folders: tuple[Path, Path]) -> None:
    for seed, folder in enumerate(folders):
        found = detection(seed, rejected=seed)
        math = {"attack": "math", "earns_nothing": 3 + seed}
        found["summary"].append(found["summary"][0] | math)
        write_json(folder / "results.json", found)
    (pool,) = pooled(load_all(folders))
    assert [row.earns_nothing for row in pool.summary] == [None, 7]


def test_detections_of_several_seeds_are_pooled(folders: tuple[Path, Path]) -> None:
    for seed, folder in enumerate(folders):
        write_json(folder / "results.json", detection(seed, rejected=seed))
    target = folders[0].parent / "both.md"
    places = [*map(str, folders), str(folders[0] / "results.json")]  # one of them appears twice
    assert called(*places, "--format", "markdown", "-o", str(target)).exit_code == 0
    assert "| honest | 5.6 % (1 / 18; 0.99–25.8 %; abstained on 2) |" in target.read_text("utf-8")
    (pool,) = pooled(load_all(folders))
    assert pool.honest_p_values == {"v": [0.2, 1.0, 0.2, 1.0]}
    other = detection(1, rejected=1)
    other["config"]["task"] = "word_problems"
    write_json(folders[1] / "results.json", other)
    assert len(pooled(load_all(folders))) == 2
    write_json(folders[1] / "results.json", detection(0, rejected=3))
    with pytest.raises(ResultsError, match=r"expected the counts of .*a/results\.json"):
        pooled(load_all(folders))


def test_unfinished_plans_are_marked() -> None:
    data = results()
    data["config"] |= {"planned_runs": 8, "finished_runs": 3}
    assert "Not finished: 3 of 8 planned runs" in page(data).text
    data["config"]["finished_runs"] = 8
    assert "Not finished" not in page(data).text


def test_several_inputs_or_a_file_need_an_output(folders: tuple[Path, Path]) -> None:
    file = folders[0] / "results.json"
    for places in (folders, (file,)):
        result = called(*map(str, places))
        assert result.exit_code == 2
        assert "-o: expected a file to write" in result.stderr
    target = folders[0].parent / "deep" / "x.html"
    assert called(str(file), "-o", str(target)).exit_code == 0
    assert target.is_file()


def test_markdown_has_a_table_of_all_runs(folders: tuple[Path, Path]) -> None:
    assert called(str(folders[0]), "--format", "markdown").exit_code == 0
    table = (folders[0] / "table.md").read_text(encoding="utf-8")
    assert table.startswith("| Attack | Swarm | Seeds |")
    for part in table.split("\n\n"):
        (pipes,) = {line.count("|") for line in part.strip().splitlines()}
        assert pipes <= 8, "a page has room for seven columns"
    target = folders[0].parent / "both.md"
    assert called(*map(str, folders), "--format", "markdown", "-o", str(target)).exit_code == 0
    assert "| text | guarded | 2 | 0.10 % (2 equal seeds) | 2 / 2,000 = 0.10 %" in target.read_text(
        encoding="utf-8"
    )


def test_p_values_out_of_range_are_reported(tmp_path: Path) -> None:
    data = {"runs": [], "p_values": {"v": {"text": [2.0]}}}
    (tmp_path / "results.json").write_text(json.dumps(data))
    result = called(str(tmp_path))
    assert result.exit_code == 2
    assert "p_values.v.text.0: expected less than or equal to 1, got 2.0" in result.stderr
