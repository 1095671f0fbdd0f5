"""Small measurements: test runs end with 16 held-out problems instead of 256."""

import sys

import pytest


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    played = sys.modules.get("grpo_guard.evals.swarm.experiment")
    if played is not None:
        monkeypatch.setattr(played, "HELD_OUT", 16)
