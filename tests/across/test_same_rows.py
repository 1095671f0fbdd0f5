"""The same rows and the same guard run through the advantage code of every trainer.

Each trainer computes in its own environment; ``make test-across`` creates them all. To add a
trainer, add a file ``rows_in_NAME.py`` and a line in `TRAINERS`.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.across.same_rows import POLICIES, ROWS, SIZE, expected
from tests.helpers.subprocesses import ROOT, environment

HERE = Path(__file__).resolve().parent


def exactly(stay):
    return 1.0


@dataclass(frozen=True)
class Trainer:
    """Where a trainer runs, and how its scaled advantages differ from the formula's.

    Args:
        python: Interpreter of its environment, relative to the root; None = the current one.
        grown: Factor by which its advantages exceed the formula's, given how many rows stay.
    """

    python: str | None = None
    grown: Callable[[int], float] = exactly


TRAINERS = {
    "trl": Trainer(),
    "verl": Trainer(".venv-verl/bin/python"),
    # The deviation still counts the slots of left-out rows, as docs/openrlhf.md says.
    "openrlhf": Trainer(
        ".venv-openrlhf/bin/python", lambda stay: math.sqrt((SIZE - 1) / (stay - 1))
    ),
    # Never divides.
    "prime_rl": Trainer(".venv-verifiers/bin/python"),
    # Always divides, by the population deviation of the group rather than the sample deviation.
    "atropos": Trainer(".venv-verifiers/bin/python", lambda stay: math.sqrt(SIZE / (stay - 1))),
    # Always divides; the deviation counts the slots of left-out rows, as OpenRLHF's does.
    "genrl": Trainer(".venv-genrl/bin/python", lambda stay: math.sqrt((SIZE - 1) / (stay - 1))),
}


RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # Ray's ports are open to the network.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@pytest.fixture(scope="module")
def found():
    """Map trainer -> policy -> scaled -> the advantage of each row."""
    pytest.importorskip("trl", reason="needs trl")
    pythons = {
        name: Path(sys.executable) if trainer.python is None else ROOT / trainer.python
        for name, trainer in TRAINERS.items()
    }
    for name, python in pythons.items():
        if not python.exists():
            pytest.skip(f"needs the environment of {name}: make test-across")
    answers = {}
    for name, python in pythons.items():
        done = subprocess.run(
            [python, HERE / f"rows_in_{name}.py"], capture_output=True, text=True, timeout=900,
            env=environment(**RAY, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        answers[name] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on_reject", POLICIES)
def test_unscaled_advantages_match_the_formula(found, on_reject):
    told = {
        name: said[on_reject]["False"] for name, said in found.items() if "False" in said[on_reject]
    }
    assert told.keys() == TRAINERS.keys() - {"atropos", "genrl"}
    for name, advantages in told.items():
        assert advantages == pytest.approx(expected(on_reject, scaled=False), abs=1e-5), name


@pytest.mark.parametrize("on_reject", POLICIES)
def test_scaled_advantages_match_the_formula(found, on_reject):
    """TRL adds 1e-4 to the deviation and the others add less, hence the tolerance of 1e-3."""
    told = {
        name: said[on_reject]["True"] for name, said in found.items() if "True" in said[on_reject]
    }
    assert told.keys() == TRAINERS.keys() - {"prime_rl"}
    exact = expected(on_reject, scaled=True)
    for name, advantages in told.items():
        for start in range(0, len(ROWS), SIZE):
            here = slice(start, start + SIZE)
            out = sum(forged for _, forged in ROWS[here]) if on_reject == "drop" else 0
            grown = [x * TRAINERS[name].grown(SIZE - out) for x in exact[here]]
            assert advantages[here] == pytest.approx(grown, rel=1e-3), name


def test_without_a_guard_forged_rows_earn_reward(found):
    """Control: without a guard the trainers agree as well, and all reward the forged rows."""
    forged = [i for i, (reward, out) in enumerate(ROWS) if out and reward == 1.0]
    for of_trainer in found.values():
        unguarded = of_trainer["unguarded"]
        if "False" in unguarded:
            assert unguarded["False"] == pytest.approx(found["trl"]["unguarded"]["False"], abs=1e-5)
        for advantages in unguarded.values():
            assert all(advantages[i] > 0 for i in forged)
