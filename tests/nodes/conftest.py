"""A ledger for the length of a test, and settings of the property tests."""

import pytest
from hypothesis import settings

from grpo_guard.nodes.ledger import EvidenceLedger

# How long one example takes says something of the machine, not of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def ledger(tmp_path):
    found = EvidenceLedger(tmp_path / "run.sqlite")
    yield found
    found.close()
