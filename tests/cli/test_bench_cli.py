"""`grpo-guard bench` writes the data from which the page is made."""

import json
import subprocess
import sys

import pytest
import torch

from grpo_guard.evals.studies.bench.page import page


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "grpo_guard", "bench", *arguments], capture_output=True, text=True
    )


@pytest.mark.slow
def test_quick_run_writes_tables_that_become_a_page(tmp_path):
    out = tmp_path / "sub" / "cpu.json"
    done = run("--quick", "--rounds", "1", "-o", str(out))
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert {"device", "machine", "versions", "date", "rounds", "tables"} <= results.keys()
    head, prompts, *replays = results["tables"]
    assert head["rows"][0]["ratio"] == 1.0
    assert {row["name"] for row in prompts["rows"]} == {
        "prompt run once (ours)",
        "prompt run per completion",
    }
    text, plots = page([out])
    assert head["name"] in text
    assert [table["name"].startswith("seed replay") for table in replays] == [True, True]
    assert "### Two ways each" in text
    assert len(plots) == 1
    assert all(svg.startswith("<svg") for svg in plots.values())


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_missing_gpu_is_reported(tmp_path):
    done = run("--device", "cuda", "-o", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert "expected a CUDA GPU" in done.stderr


@pytest.mark.slow
def test_missing_model_is_reported(tmp_path):
    done = run("--model", str(tmp_path), "-o", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert "expected a folder with config.json" in done.stderr
