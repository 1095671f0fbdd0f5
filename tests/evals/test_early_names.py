"""Names that ``eval`` commands check before loading torch, compared with those the engine plays."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.evals.defences import registry
from grpo_guard.evals.defences.early import INSTALLED, ON_REJECT
from grpo_guard.evals.studies import baselines
from grpo_guard.evals.studies.baselines.registry import DEFENCES

TYPOS = [
    (["detect", "--attacks", "txt"], "--attacks: expected one of .*did you mean 'text'"),
    (["detect", "--verifiers", "screans"], "--verifiers: expected one of .*mean 'screens'"),
    (["detect", "--guard", "guard.txt"], "--guard: expected FILE.yaml or preset:NAME"),
    (["detect", "--guard", "preset:different-weights"], "did you mean 'different_weights'"),
    (["swarm", "--attack", "txt"], "--attack: expected one of .*did you mean 'text'"),
    (["swarm", "--defence", "homogenous"], "--defence: .*did you mean 'homogeneous'"),
    (["swarm", "--guard", "preset:judgd"], "did you mean 'judged'"),
    (["swarm", "--guard", "nowhere.yaml"], "nowhere.yaml: expected a guard file, got none"),
]


@pytest.mark.parametrize(("arguments", "said"), TYPOS)
def test_typo_gets_a_suggestion(arguments, said):
    import re

    result = CliRunner().invoke(app, ["eval", *arguments])
    assert result.exit_code == 2
    assert re.search(said, result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in TYPOS])
def test_checking_names_does_not_load_torch(arguments):
    code = (
        "import sys\nfrom grpo_guard.cli.main import app\n"
        f"try: app({['eval', *arguments]!r})\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "AssertionError" not in done.stderr


def test_reject_rules_match_the_swarm_settings():
    from typing import get_args

    from grpo_guard.evals.swarm.config import OnReject

    assert set(ON_REJECT) == set(get_args(OnReject))


def test_names_match_the_registry():
    assert set(INSTALLED) == {one.name for one in registry._INSTALLED}
    assert set(baselines.NAMES) == {one.name for one in DEFENCES}
