"""The Triton kernels against float64, run by Triton's interpreter on a CPU.

All cases run once, in one process of their own (why: see `triton_cases.py`), and each is reported
here as a test of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton_cases import CASES

from grpo_guard.logprob.kernels.triton_stats import MeasuredRoutes

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("triton") / "results.json"
    process = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_cases.py")), str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(path.read_text())


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_interpreted(name, results):
    failure = results[name]["failure"]
    if failure:
        pytest.fail(failure, pytrace=False)


def test_the_faster_route_is_measured_once_per_kind_of_call():
    runs = []

    def seconds(way):
        return way()

    def taking(name, duration):
        return lambda: runs.append(name) or duration

    routes = MeasuredRoutes(seconds)
    ways = {"workspace": taking("workspace", 2.0), "fused": taking("fused", 1.0)}
    assert routes.fastest("small", ways) == "fused"
    measured = len(runs)
    assert routes.fastest("small", ways) == "fused"
    assert len(runs) == measured
    slow = {**ways, "fused": taking("fused", 3.0)}
    assert routes.fastest("large", slow) == "workspace"
