"""``grpo-guard doctor`` lists what is installed, what is missing and how to install it."""

import importlib.metadata
from importlib.util import find_spec

from typer.testing import CliRunner

from grpo_guard.cli import doctor
from grpo_guard.cli.main import app
from grpo_guard.core.registry import VERIFIERS, names


def test_lists_versions_verifiers_and_working_kernels():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert f"torch {importlib.metadata.version('torch')}" in result.output
    assert "right: log-probs within" in result.output
    optional = {"secrets": "detect_secrets", "pii": "presidio_analyzer", "language": "lingua"}
    for name in names(VERIFIERS):
        there = find_spec(optional.get(name, "grpo_guard")) is not None
        lacks = f"{name}: needs {optional.get(name)}, which is not installed: pip install 'grpo-"
        assert (f"{name}: ready" if there else lacks) in result.output


def test_missing_packages_come_with_an_install_command(monkeypatch):
    version = importlib.metadata.version

    def without_two(package):
        if package in ("openai", "torch"):
            raise importlib.metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", without_two)
    result = CliRunner().invoke(app, ["doctor"])
    assert "judge: openai is missing; pip install 'grpo-guard[judge]'" in result.output
    assert "torch is missing; pip install 'grpo-guard[torch]'" in result.output
    assert result.exit_code == 0


def test_wrong_kernel_results_exit_1(monkeypatch):
    monkeypatch.setattr(doctor, "TOLERANCE", 0.0)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "WRONG: log-probs within" in result.output
