"""The same rows and the same guard through the advantage code of TRL, verl and OpenRLHF.

Each trainer computes in its own environment: ``make test-across`` makes them all.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from same_rows import POLICIES, ROWS, SIZE, expected

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHONS = {
    "trl": Path(sys.executable),
    "verl": ROOT / ".venv-verl/bin/python",
    "openrlhf": ROOT / ".venv-openrlhf/bin/python",
}


# The trainers' own tests have the small parts; Ray's workers import them, and the rewards, by name.
FOLDERS = [HERE, *(HERE.parent / name for name in ("adapters", "verl", "openrlhf"))]
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # its ports are open to the network
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def environment():
    paths = [*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return os.environ | own | RAY | {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def found():
    """Trainer -> policy -> whether scaled -> the advantage of each row."""
    pytest.importorskip("trl", reason="needs trl")
    for name, python in PYTHONS.items():
        if not python.exists():
            pytest.skip(f"needs the environment of {name}: make test-across")
    answers = {}
    for name, python in PYTHONS.items():
        done = subprocess.run(
            [python, HERE / f"rows_in_{name}.py"], capture_output=True, text=True, timeout=900,
            env=environment(),
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        answers[name] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on_reject", POLICIES)
def test_advantages_without_division_by_the_deviation(found, on_reject):
    for name, of_trainer in found.items():
        assert of_trainer[on_reject]["False"] == pytest.approx(
            expected(on_reject, scaled=False), abs=1e-5
        ), name


def test_advantages_over_the_deviation(found):
    """TRL adds 1e-4 to the deviation, the others less: hence 1e-3."""
    for name, of_trainer in found.items():
        assert of_trainer["zero"]["True"] == pytest.approx(expected("zero", True), rel=1e-3), name
    for name in ("trl", "verl"):
        assert found[name]["drop"]["True"] == pytest.approx(expected("drop", True), rel=1e-3), name


def test_openrlhfs_deviation_counts_what_is_left_out(found):
    """As docs/openrlhf.md says: sqrt((n - 1) / (m - 1)) times as large where m of n stay."""
    exact = expected("drop", True)
    for start in range(0, len(ROWS), SIZE):
        here = slice(start, start + SIZE)
        stay = sum(not forged for _, forged in ROWS[here])
        grown = [x * math.sqrt((SIZE - 1) / (stay - 1)) for x in exact[here]]
        assert found["openrlhf"]["drop"]["True"][here] == pytest.approx(grown, rel=1e-3)


def test_unguarded_the_poison_earns(found):
    """The control: without a guard the three trainers agree too, and all reward the forged."""
    forged = [i for i, (reward, out) in enumerate(ROWS) if out and reward == 1.0]
    for of_trainer in found.values():
        assert of_trainer["unguarded"]["False"] == pytest.approx(
            found["trl"]["unguarded"]["False"], abs=1e-5
        )
        assert all(of_trainer["unguarded"]["False"][i] > 0 for i in forged)
