"""``grpo-guard eval detect``: help is quick; bad input exits 2 with its location."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_guard.evals.cli import app
from tests.evals.tiny_eval_policy import save_tiny

RUNNER = CliRunner()
LINE = {"question": "How many?", "answer": "#### 1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


def fails(*arguments: str) -> str:
    """Return stderr of a call that must exit with 2."""
    result = RUNNER.invoke(app, ["detect", *arguments])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_unknown_names_get_the_nearest_suggestion() -> None:
    assert "got 'txt'; did you mean 'text'?" in fails("--attacks", "math,txt")
    assert "--attacks: expected one of answer_unit, " in fails("--attacks", "zzz")
    assert "did you mean 'logprob_bound'?" in fails("--verifiers", "logprob_bond")
    assert "gsm9k" in fails("--task", "gsm9k")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--n", "0"), "--n"),
        (("--alpha", "2"), "--alpha: expected a number in (0, 1), got 2.0"),
        (("--temperature", "0"), "SamplingSpec.temperature: expected"),
        (("--dtype", "int4"), "int4"),
    ],
)
def test_values_out_of_range_exit_2(arguments: tuple[str, ...], message: str) -> None:
    assert message in fails(*arguments)


def test_malformed_data_is_reported_by_file_and_line(folder: str, tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text(json.dumps(LINE) + "\n{\n")
    common = ("--model", folder, "-o", str(tmp_path / "out"), "--data")
    assert f"{data}:2: (line): expected a JSON object" in fails(*common, str(data))
    data.write_text(json.dumps({"question": "q"}) + "\n")
    assert f"{data}:1: answer: expected" in fails(*common, str(data))
    assert "none.jsonl: (file): expected" in fails(*common, str(tmp_path / "none.jsonl"))


def test_folder_without_a_model_is_reported(tmp_path: Path) -> None:
    message = fails("--task", "word_problems", "--model", str(tmp_path), "-o", str(tmp_path / "o"))
    assert f"{tmp_path}: expected a model folder with config.json" in message


def test_a_small_run_prints_the_matrix_and_writes_the_files(folder: str, tmp_path: Path) -> None:
    result = RUNNER.invoke(
        app,
        [
            *("detect", "--model", folder, "--task", "word_problems", "--attacks", "text"),
            *("--n", "4", "--min-tokens", "4", "--max-new-tokens", "24", "--top-k", "5"),
            *("--no-controls", "-o", str(tmp_path)),
        ],
    )
    assert result.exit_code == 0, result.output
    lines = [re.split(r"\s{2,}", line) for line in result.stdout.splitlines()]
    assert lines[0][:3] == ["completions", "verifier", "rejected"]
    assert ["honest", "logprob_bound (float32)", "0/4"] in [line[:3] for line in lines]
    assert ["text", "logprob_bound (float32)", "4/4"] in [line[:3] for line in lines]
    assert json.loads((tmp_path / "results.json").read_text())["summary"]
    assert "sample honest: 4/4" in result.stderr


def test_too_few_long_completions_is_an_error(folder: str, tmp_path: Path) -> None:
    arguments = ["--task", "word_problems", "--n", "1", "--min-tokens", "99"]
    result = RUNNER.invoke(
        app,
        ["detect", "--model", folder, *arguments, "--max-new-tokens", "4", "-o", str(tmp_path)],
    )
    assert result.exit_code == 1
    assert "got 0; lower --min-tokens" in result.stderr
