"""A guarded reward function per trainer at module level, as worker processes import them."""

import os
from typing import Any

from grpo_guard import Policy
from tests.adapters.contract.contract_grader import grader
from tests.adapters.contract.contract_trainers import TRAINERS, Trainer

# Detects a worker that continues another's count: the second batch of one would exceed it.
COUNTING = Policy("zero", "pass", max_abstain_rate=0.5, abstain_window=2)


def _at_module_level(name: str, trainer: Trainer) -> Any:
    function = grader(trainer, name=name)
    function.__module__, function.__qualname__ = __name__, name
    return trainer.wrap(function, policy=COUNTING)


for _name, _trainer in TRAINERS.items():
    globals()[_name] = _at_module_level(_name, _trainer)


def guarded_of(name: str) -> Any:
    return globals()[name]


def rewards_in_worker(name: str, guarded: Any, texts: list[str]) -> tuple[int, list[Any]]:
    """Return the process id and the reward; ``guarded`` arrived through pickle."""
    return os.getpid(), TRAINERS[name].rewards(guarded, texts)
