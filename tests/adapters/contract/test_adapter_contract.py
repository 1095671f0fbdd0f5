"""Run every adapter against every check of the contract."""

import pytest

from grpo_guard.guard.framework import adapter_names
from tests.adapters.contract.contract_checks import CHECKS
from tests.adapters.contract.contract_trainers import TRAINERS

# Checks known to fail. Strict, so that fixing one forces the removal of its line.
KNOWN: dict[tuple[str, str], str] = {}


def pairs():
    marked = []
    for name in TRAINERS:
        for check in CHECKS:
            reason = KNOWN.get((name, check))
            mark = pytest.mark.xfail(strict=True, reason=reason or "")
            marks = [mark] if reason else []
            marked.append(pytest.param(name, check, id=f"{name}-{check}", marks=marks))
    return marked


@pytest.mark.parametrize(("name", "check"), pairs())
def test_contract(name, check):
    """The asserts are in the checks; `test_contract_catches` shows that each of them can fail."""
    CHECKS[check](TRAINERS[name])


def test_every_framework_is_in_the_suite():
    assert set(adapter_names()) <= TRAINERS.keys(), "a new adapter needs its line in TRAINERS"
