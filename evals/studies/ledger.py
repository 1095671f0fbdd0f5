"""The ledger's detection rate and false accusations.

``python -m grpo_guard.evals.studies.ledger [-o FILE]``; with ``--nodes 100000``, only the cost of
the same number of records from that many nodes and from eight (`ledger_scale`).

Simulates swarms of nodes whose completions are rejected at given rates, round by round. Horizontal:
8 prompts with 12 completions each, shared by the nodes. Vertical: each node answers 2 prompts of
its own 12 times. A round is judged two rounds later; a node is found if it is then convicted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.ledger_scale import scale
from grpo_guard.nodes.bets import WEIGHTS, Bets, Tally, Tolerance
from grpo_guard.nodes.evidence import STRIDE, Comparison, honest_peers, threshold
from grpo_guard.nodes.rounds import MAX_HELD, OPEN_ROUNDS

ALPHA = 1e-3
HOSTILE = 1 / 3
GROUP = 12
PER_NODE = 24
CHUNK = 2_000

Ints = NDArray[np.int64]
# Called with a round's number; returns each node's rejection rate, shape [nodes].
Rates = Callable[[int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of swarm.

    Args:
        rates: Rejection rate of every node, by round.
        bad: Indices of the nodes that poison; the others are honest.
        vertical: Whether nodes answer their own prompts.
        odd: Probability that all answers to a prompt are rejected.
        most_swarms: Maximum number of swarms to simulate, since every accusation costs time.
    """

    name: str
    rates: Rates
    bad: tuple[int, ...] = ()
    rounds: int = 300
    vertical: bool = False
    odd: float = 0.0
    most_swarms: int = 10**9

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.rates(0))


def poisoned(honest: float, every: float, caught: float = 1.0) -> float:
    """Return the rejection rate of a node that poisons one completion in ``every``."""
    return honest + (1 - honest) * caught / every


def steady(*rates: float) -> Rates:
    """Return rates that are the same in every round."""
    return lambda t: rates


def three(honest: float, other: float) -> Rates:
    """Return the steady rates for three honest nodes and one other node."""
    return steady(honest, honest, honest, other)


def honest_scenarios() -> Iterator[Scenario]:
    """Yield swarms where no honest node should be accused."""
    for share in (0.0, 0.001, 0.01, 0.03):
        yield Scenario(f"all honest, {share:.1%} rejected", three(share, share))
    yield Scenario("three at 3%, a weaker one at 5%", three(0.03, 0.05))
    name = "beyond the tolerance: three at 0.1%, one at 2%"
    yield Scenario(name, three(0.001, 0.02), most_swarms=500)
    yield Scenario("three at 3%, a hostile spotless one", three(0.03, 0.0), (3,))
    name = "all honest, 0.1%, and 1.0% of prompts of one's own rejected whole"
    yield Scenario(name, three(0.001, 0.001), vertical=True, odd=0.01)


def poison_scenarios() -> Iterator[Scenario]:
    """Yield swarms where some nodes poison."""
    for honest in (0.001, 0.03):
        for caught in (1.0, 0.5):
            name = f"1 in 12, caught {caught:.0%}, honest {honest:.1%}"
            yield Scenario(name, three(honest, poisoned(honest, 12, caught)), (3,), 60)
    often = poisoned(0.001, 12)
    name = "three of twelve, 1 in 12, caught 100%, honest 0.1%"
    yield Scenario(name, steady(*[0.001] * 9, often, often, often), (9, 10, 11), 100)


def rejections(scenario: Scenario, swarms: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw the number of rejected and of held completions, shape [rounds, swarms, nodes] each."""
    nodes = scenario.nodes
    # Independent completions need no prompts.
    shared = PER_NODE // 3 if scenario.odd else 1
    prompts = PER_NODE // GROUP if scenario.vertical else shared
    each = PER_NODE // prompts
    shape = (scenario.rounds, swarms, nodes, prompts)
    rates = np.array([scenario.rates(t) for t in range(scenario.rounds)])[:, None, :, None]
    found = rng.binomial(each, rates, shape)
    if scenario.odd:
        whose = shape if scenario.vertical else (*shape[:2], 1, prompts)
        found = np.where(rng.random(whose) < scenario.odd, each, found)
    held = np.minimum(found, MAX_HELD) if scenario.vertical else found
    return found.sum(-1), held.sum(-1)


def possible(rejected: Ints, held: Ints, level: float) -> NDArray[np.bool_]:
    """Return where evidence might have reached ``level``, by an upper bound, in all swarms.

    The ledger takes the worst peers for each beginning and bet, so a fixed choice of peers for all
    of them yields at least as much. Neighbouring nodes are tried; evidence does not decay.
    """
    rounds, swarms, nodes = rejected.shape
    honest = honest_peers(nodes - 1, HOSTILE)
    bets = Bets(Tolerance())
    none, one = Tally(PER_NODE, 0, 0), Tally(PER_NODE, 1, 1)
    price = bets.score(none, none, honest)
    held_one = bets.score(one, none, honest) - price
    of_peer = bets.score(none, one, honest) - price
    found = np.zeros((rounds, swarms, nodes), dtype=bool)
    for i in range(nodes):
        others = [j for j in range(nodes) if j != i]
        sets = np.array([np.roll(others, k)[:honest] for k in range(len(others))])
        wealth = np.zeros((swarms, len(sets), len(WEIGHTS)))
        most = np.arange(PER_NODE * honest + 1)[:, None]
        of_mine, of_theirs = np.exp(most * honest * held_one), np.exp(most * of_peer)
        for t in range(rounds):
            if t % STRIDE == 0:
                begun = t // STRIDE
                wealth += 1 / ((begun + 1) * (begun + 2))
            from_peers = rejected[t][:, sets].sum(-1)
            wealth *= of_theirs[from_peers]
            wealth *= (of_mine[held[t, :, i]] * np.exp(honest * price))[:, None]
            np.minimum(wealth, 1e200, out=wealth)
            rising = np.flatnonzero(held[t, :, i])  # evidence rises only with a rejection
            total = wealth[rising] @ np.array(WEIGHTS)
            found[t, rising, i] = total.min(axis=1) >= np.exp(level)
    return found


def first_rounds(rejected: Ints, held: Ints, level: float) -> NDArray[np.float64]:
    """Return the round when each node's evidence first reached ``level``, or inf if it never did.

    The ledger's own code computes evidence in the rounds of `possible`. Shape [swarms, nodes].
    """
    rounds, swarms, nodes = rejected.shape
    may = possible(rejected, held, level)
    found = np.full((swarms, nodes), np.inf)
    for s in np.flatnonzero(may.any(axis=(0, 2))):
        comparison = Comparison(Tolerance(), HOSTILE)
        for t in range(rounds):
            comparison.add(
                {
                    str(i): Tally(PER_NODE, int(rejected[t, s, i]), int(held[t, s, i]))
                    for i in range(nodes)
                }
            )
            open_ = [i for i in np.flatnonzero(may[t, s]) if found[s, i] == np.inf]
            if open_:
                evidence = comparison.evidence()
                for i in open_:
                    if evidence[str(i)].log_e >= level:
                        found[s, i] = t
    return found


def accusations(scenario: Scenario, swarms: int, seed: int) -> dict[str, Any]:
    """Count the swarms where any honest node is ever convicted (a hard verdict)."""
    rng = np.random.default_rng(seed)
    level = threshold(scenario.nodes - 1, ALPHA)
    honest = [i for i in range(scenario.nodes) if i not in scenario.bad]
    swarms, hits = min(swarms, scenario.most_swarms), 0
    for start in range(0, swarms, CHUNK):
        found = first_rounds(*rejections(scenario, min(CHUNK, swarms - start), rng), level)
        hits += int(np.isfinite(found[:, honest]).any(axis=1).sum())
    return {"rounds": scenario.rounds, **rate(hits, swarms)}


def detections(scenario: Scenario, swarms: int, seed: int) -> dict[str, Any]:
    """Count the poisoning nodes convicted within 30 rounds or at any time, and record when."""
    rng = np.random.default_rng(seed)
    found = first_rounds(*rejections(scenario, swarms, rng), threshold(scenario.nodes - 1, ALPHA))
    # Round t is judged when round t + 2 begins, and by then t + 3 rounds have begun.
    known = found[:, list(scenario.bad)] + OPEN_ROUNDS + 1
    honest = [i for i in range(scenario.nodes) if i not in scenario.bad]
    middle = median(known.ravel().tolist())
    return {
        "within_30": rate(int((known <= 30).sum()), known.size),
        "ever": rate(int(np.isfinite(known).sum()), known.size),
        "rounds": scenario.rounds,
        "median_round": middle if np.isfinite(middle) else None,
        "swarms_with_honest_accused": rate(
            int(np.isfinite(found[:, honest]).any(axis=1).sum()), swarms
        ),
    }


def measure(
    swarms: int, poisoned: int, nodes: int = 0, records: int = 0, rounds: int = 0
) -> dict[str, Any]:
    """Compute all figures."""
    if nodes:
        return scale(nodes, records, rounds)
    honest, hostile = list(honest_scenarios()), list(poison_scenarios())
    accused, detected = {}, {}
    for seed, scenario in enumerate(honest):
        accused[scenario.name] = accusations(scenario, swarms, seed)
        say("honest scenarios", seed + 1, len(honest))
    for seed, scenario in enumerate(hostile):
        detected[scenario.name] = detections(scenario, poisoned, 1000 + seed)
        say("poisoned scenarios", seed + 1, len(hostile))
    return {
        "alpha": ALPHA,
        "hostile": HOSTILE,
        "tolerance": asdict(Tolerance()),
        "completions_per_node_and_round": PER_NODE,
        "swarms that accuse an honest node": accused,
        "detection": detected,
    }


if __name__ == "__main__":
    study(
        "ledger",
        measure,
        option("--swarms", type=int, default=10_000, help="honest ones per scenario"),
        option("--poisoned", type=int, default=400, help="poisoned ones per scenario"),
        option("--nodes", type=int, default=0, help="measure only the cost with so many nodes"),
        option("--records", type=int, default=1_000_000, help="with --nodes: records in a round"),
        option("--rounds", type=int, default=4, help="with --nodes: rounds, three or more"),
    )
