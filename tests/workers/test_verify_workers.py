"""``grpo-guard verify --workers``."""

import json

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.guard import grader_pool
from grpo_guard.guard.workers import texts

PAYING = "preset: different_weights\npolicy: {on_abstain: pass}\n"


@pytest.fixture
def files(tmp_path):
    rows = [
        {"prompt": f"What is {i // 4} + 2?", "text": f"{i // 4} + 2 = {i // 4 + 2 + (i % 9 == 0)}",
         "node": f"n{i % 4}", "id": i}
        for i in range(400)
    ]  # fmt: skip
    rows = rows[::2] + rows[1::2]  # prompts of which the completions stand apart
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    (tmp_path / "guard.yaml").write_text("preset: different_weights\nworkers: 1\n")
    return tmp_path


def run(files, out, *options):
    command = ["verify", "-c", files / "guard.yaml", files / "in.jsonl", "-o", files / out]
    return CliRunner().invoke(app, [*map(str, command), *options])


def untimed(found):
    if isinstance(found, dict):
        return {name: untimed(value) for name, value in found.items() if name != "seconds"}
    return [untimed(one) for one in found] if isinstance(found, list) else found


def verdicts(files, out):
    return [untimed(json.loads(line)) for line in (files / out).read_text().splitlines()]


def test_the_file_is_the_same_with_any_number(files):
    for name, options in {"0": ["--workers", "0"], "file": [], "3": ["--workers", "3"]}.items():
        assert run(files, name, *options).exit_code == 0
    assert verdicts(files, "0") == verdicts(files, "file") == verdicts(files, "3")
    assert len({row["outcome"] for row in verdicts(files, "0")}) == 2
    whole = (files / "3").read_text()
    (files / "3").write_text(whole[: len(whole) // 3])
    assert run(files, "3", "--resume", "--workers", "2").exit_code == 0
    assert [row["id"] for row in verdicts(files, "3")] == [
        row["id"] for row in verdicts(files, "0")
    ]


def test_numbers_and_policies_that_are_refused(files):
    assert run(files, "out", "--workers", "-1").exit_code == 2
    (files / "guard.yaml").write_text(PAYING)
    refused = run(files, "out", "--workers", "2")
    assert refused.exit_code == 2
    assert "--workers: Policy.on_abstain: 'pass' would pay authors" in refused.stderr


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (8, 4)])
def test_a_large_file_gets_half_of_the_cores_unasked(files, monkeypatch, cores, workers):
    from grpo_guard.cli import verify
    from grpo_guard.config import GuardConfig

    (files / "guard.yaml").write_text("preset: different_weights\n")
    monkeypatch.setattr(grader_pool, "cores", lambda: cores)

    def number(size, file="preset: different_weights"):
        monkeypatch.setattr(texts, "WORTH_CHARACTERS", size)
        guard = GuardConfig.from_text(file, "f").build()
        verify._with_processes(guard, None, files / "in.jsonl")
        return guard.workers.number

    assert number(1) == workers
    assert number(10**9) == 0
    assert number(1, "preset: different_weights\nworkers: 3") == 3
    assert number(1, "verifier: {type: screens}\npolicy: {on_abstain: pass}") == 0
