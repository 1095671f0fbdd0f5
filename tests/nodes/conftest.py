"""A ledger that lasts for one test, and settings of the property tests."""

import pytest
from hypothesis import settings

from grpo_guard.nodes.ledger import EvidenceLedger

# The run time of one example depends on the machine, not on the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def ledger(tmp_path):
    found = EvidenceLedger(tmp_path / "run.sqlite")
    yield found
    found.close()
