"""The simulation behind the figures agrees with the ledger's own code."""

import numpy as np

from grpo_guard.evals.studies.ledger import (
    PER_NODE,
    Scenario,
    first_rounds,
    rejections,
    steady,
    three,
)
from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.evidence import Comparison


def test_simplifications_of_the_simulation_do_not_matter():
    level = 4.0  # honest nodes reach it too
    for vertical in (False, True):
        scenario = Scenario("", three(0.02, 0.07), (3,), 40, vertical)
        rejected, held = rejections(scenario, 12, np.random.default_rng(1))
        direct = np.full((12, 4), np.inf)
        for s in range(12):
            comparison = Comparison()
            for t in range(40):
                comparison.add(
                    {
                        str(i): Tally(PER_NODE, int(rejected[t, s, i]), int(held[t, s, i]))
                        for i in range(4)
                    }
                )
                for i, evidence in comparison.evidence().items():
                    if evidence.log_e >= level and direct[s, int(i)] == np.inf:
                        direct[s, int(i)] = t
        assert np.isfinite(direct).any()
        assert not np.isfinite(direct).all()
        assert np.array_equal(first_rounds(rejected, held, level), direct)


def test_simulation_agrees_with_three_nodes():
    scenario = Scenario("", steady(0.02, 0.02, 0.2), (2,), 30)
    rejected, held = rejections(scenario, 8, np.random.default_rng(2))
    found = first_rounds(rejected, held, 4.0)
    for s in range(8):
        comparison, first = Comparison(), {}
        for t in range(30):
            k = rejected[t, s]
            comparison.add({str(i): Tally(PER_NODE, int(k[i]), int(k[i])) for i in range(3)})
            for i, evidence in comparison.evidence().items():
                if evidence.log_e >= 4.0:
                    first.setdefault(int(i), t)
        assert {i: t for i, t in enumerate(found[s]) if np.isfinite(t)} == first


def test_rejections_occur_at_the_requested_rates():
    rng = np.random.default_rng(0)
    rejected, held = rejections(Scenario("", three(0.01, 0.1)), 500, rng)
    assert np.allclose(rejected.mean((0, 1)) / PER_NODE, [0.01, 0.01, 0.01, 0.1], rtol=0.05)
    assert (held == rejected).all()
    rejected, held = rejections(Scenario("", three(0.01, 0.9), vertical=True), 50, rng)
    assert held.max() == 6
    assert rejected.max() > 20
