"""The simulation behind the figures agrees with the ledger's own code."""

import numpy as np

from grpo_guard.evals.ledger import PER_NODE, Scenario, first_rounds, rejections, three
from grpo_guard.ledger.bets import Tally
from grpo_guard.ledger.evidence import Comparison


def test_what_it_leaves_out_does_not_matter():
    level = 4.0  # reached by honest nodes too
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


def test_rejections_come_at_the_rates_that_were_asked_for():
    rng = np.random.default_rng(0)
    rejected, held = rejections(Scenario("", three(0.01, 0.1)), 500, rng)
    assert np.allclose(rejected.mean((0, 1)) / PER_NODE, [0.01, 0.01, 0.01, 0.1], rtol=0.05)
    assert (held == rejected).all()
    rejected, held = rejections(Scenario("", three(0.01, 0.9), vertical=True), 50, rng)
    assert held.max() == 6
    assert rejected.max() > 20
