"""``grpo-guard verify --engine ray`` writes the same output as without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.distributed.test_ray_verifier import row

pytest.importorskip("ray", reason="needs ray: pip install 'grpo-guard[ray]'")

from grpo_guard.cli.main import app
from grpo_guard.server.distributed import cluster as clusters

DYING = """
import os
from grpo_guard import ScreensVerifier

class Dying(ScreensVerifier):
    def look(self, batch):
        if any(completion.text == "die" for completion in batch):
            os.kill(os.getpid(), 9)
        return super().look(batch)
"""
PRESET = "preset: different_weights\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [row(i) for i in range(600)]
    said = [
        {"prompt": c.prompt, "text": c.text, "node": c.node, "reference": c.reference, "id": i}
        for i, c in enumerate(rows)
    ]
    said = said[::2] + said[1::2]  # prompts whose completions are scattered over the file
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in said))
    (tmp_path / "guard.yaml").write_text(PRESET)
    return tmp_path


def run(files: Path, out: str, *options: str) -> Any:
    command = ["verify", "-c", files / "guard.yaml", files / "in.jsonl", "-o", files / out]
    return CliRunner().invoke(app, [*map(str, command), *options])


def untimed(verdict: dict[str, Any]) -> dict[str, Any]:
    return verdict | {"seconds": 0, "members": [untimed(m) for m in verdict["members"]]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [untimed(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_output_is_the_same_even_after_resuming(files) -> None:
    assert run(files, "here.jsonl").exit_code == 0
    ray = ("--engine", "ray", "--workers", "2")
    result = run(files, "there.jsonl", *ray)
    assert result.exit_code == 0, result.output
    want = lines(files / "here.jsonl")
    assert lines(files / "there.jsonl") == want
    assert 0 < sum(one["outcome"] == "reject" for one in want) < 600
    # A guard without state gives the same verdicts on the remainder.
    (files / "guard.yaml").write_text("verifier: {all: [{type: screens}, {type: code}]}")
    assert run(files, "here.jsonl").exit_code == 0
    whole = (files / "here.jsonl").read_text().splitlines(keepends=True)
    (files / "there.jsonl").write_text("".join(whole[:250]) + whole[250][:20])
    result = run(files, "there.jsonl", "--resume", *ray)
    assert result.exit_code == 0, result.output
    assert lines(files / "there.jsonl") == lines(files / "here.jsonl")
    assert (files / "there.jsonl").read_text().startswith("".join(whole[:250]))


@pytest.mark.slow
def test_stdout_has_only_verdicts_even_if_a_worker_dies(tmp_path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "guard.yaml").write_text("verifier: {type: 'dying:Dying'}")
    rows = [{"prompt": "q", "text": text} for text in ("fine", "die", "fine")]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    command = [sys.executable, "-m", "grpo_guard", "verify", "-c", "guard.yaml", "in.jsonl"]
    done = subprocess.run(
        [*command, "-o", "-", "--engine", "ray", "--workers", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["outcome"] for one in said] == ["accept", "abstain", "accept"]


def test_invalid_options_exit_2(files, monkeypatch) -> None:
    (files / "guard.yaml").write_text("verifier: {type: recurrence}")
    result = run(files, "out.jsonl", "--engine", "ray")
    assert result.exit_code == 2
    assert "--engine ray: expected rules that read each text alone, got rec" in result.stderr
    (files / "guard.yaml").write_text(PRESET)
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    result = run(files, "out.jsonl", "--engine", "ray")
    assert result.exit_code == 2
    assert "pip install 'grpo-guard[ray]'" in result.stderr
    assert not (files / "out.jsonl").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_policy_that_pays_for_abstentions_is_refused(files) -> None:
    """Otherwise a text that kills workers would be a reward on demand."""
    (files / "guard.yaml").write_text("policy: {on_abstain: pass}\nverifier: {type: screens}")
    assert run(files, "here.jsonl").exit_code == 0
    result = run(files, "there.jsonl", "--engine", "ray", "--workers", "1")
    assert result.exit_code == 2
    assert "every worker dies or hangs makes screens abstain" in result.stderr
    assert not (files / "there.jsonl").exists()
