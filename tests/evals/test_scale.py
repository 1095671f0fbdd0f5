"""The ledger's scale study on small numbers."""

import pytest

from grpo_guard.evals.studies.ledger_scale import compared, scale


@pytest.mark.slow
def test_ledger_scale_is_measured():
    figures = scale(nodes=50, records=200, rounds=3)
    assert figures["few"]["records_per_round"] == figures["many"]["records_per_round"] == 200
    assert figures["ratio"] > 0
    assert compared(50, 3, 0.5)["most_memory_bytes"] >= 0
