"""The Triton kernels against float64, run by Triton's interpreter on a CPU.

All cases run once, in a separate process (see `triton_cases.py` for the reason), and each is
reported here as its own test.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels import head_stats as head_stats_module
from grpo_guard.logprob.kernels import triton_stats
from grpo_guard.logprob.kernels.head_stats import head_stats
from grpo_guard.logprob.kernels.scores import ForeignHead, Head
from tests.helpers.subprocesses import environment
from tests.logprob.triton_cases import CASES

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("triton") / "results.json"
    process = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_cases.py")), str(path)],
        env=environment(TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(path.read_text())


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_kernel_matches_float64_in_the_interpreter(name, results):
    assert results[name]["failure"] is None, results[name]["failure"]


def test_kernels_get_only_plain_heads(monkeypatch):
    def wrong(*arguments, **options):
        raise AssertionError("a head that no kernel can read")

    monkeypatch.setattr(head_stats_module, "triton_row_stats", wrong)
    monkeypatch.setattr(head_stats_module, "supported", lambda device: True)
    monkeypatch.setattr(head_stats_module, "_triton_failed", False)
    spec = SamplingSpec("transformers", 1.0, 5, 1.0)
    foreign = ForeignHead(torch.nn.Linear(8, 20), 20)
    with torch.no_grad():
        head_stats(torch.randn(3, 8), foreign, torch.tensor([1, 2, 3]), spec)
    assert not head_stats_module._triton_failed


def test_without_triton_the_error_names_the_package(monkeypatch):
    monkeypatch.setattr(triton_stats, "triton_available", lambda: False)
    with pytest.raises(ImportError, match="the package triton"):
        triton_stats.triton_row_stats(
            torch.randn(3, 8), Head(torch.randn(20, 8)), torch.tensor([1, 2, 3]), temperature=1.0
        )


def test_failing_kernels_fall_back_to_tiles_with_one_warning(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(head_stats_module, "triton_row_stats", broken)
    monkeypatch.setattr(head_stats_module, "supported", lambda device: True)
    monkeypatch.setattr(head_stats_module, "_triton_failed", False)
    arguments = torch.randn(9, 8), Head(torch.randn(20, 8)), torch.arange(9)
    spec = SamplingSpec("transformers", 1.0, 5, 1.0)
    with pytest.warns(RuntimeWarning, match=r"C compiler.*with tiles") as warned:
        stats, _, _ = head_stats(*arguments, spec, rows_at_once=4)
    assert len(warned) == 1
    monkeypatch.setattr(head_stats_module, "supported", lambda device: False)
    expected, _, _ = head_stats(*arguments, spec)
    torch.testing.assert_close(stats.logprob, expected.logprob)


def test_out_of_memory_in_kernels_is_left_to_the_scorer(monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(head_stats_module, "triton_row_stats", full)
    monkeypatch.setattr(head_stats_module, "supported", lambda device: True)
    spec = SamplingSpec("transformers", 1.0, 5, 1.0)
    with pytest.raises(torch.OutOfMemoryError):
        head_stats(torch.randn(9, 8), Head(torch.randn(20, 8)), torch.arange(9), spec)


@needs_triton
@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_products_disable_tf32_and_restore_the_trainers_setting(precision):
    from grpo_guard.logprob.kernels.triton_launch import _without_tf32

    matmul = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(precision)
    try:
        before = matmul.fp32_precision
        with _without_tf32():
            assert matmul.fp32_precision != "tf32"
        assert matmul.fp32_precision == before
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
