"""Scaling, the node test's bound, and hostile input for the length verifier."""

import json
import math
import os
import pickle
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.content.length.compare import Group, Member, tail
from grpo_guard.content.length.redundancy import measure
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.nodes.lengths import NodeMemory
from grpo_guard.nodes.usual_lengths import UsualLengths

NAMED = os.environ.get("GRPO_GUARD_GSM8K", "")
FOLDER = Path(NAMED) if NAMED and Path(NAMED).is_dir() else Path(NAMED).parent
SOLUTIONS = FOLDER / "model_solutions.jsonl"
LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=20)


@given(LENGTHS)
def test_factors_are_in_0_1_and_fall_with_length(lengths: list[int]) -> None:
    batch = [Completion("Q", "x" * n, node=f"n{i}") for i, n in enumerate(lengths)]
    factors = LengthScaling(tolerance=0.5).factors(batch)
    assert all(0 <= factor <= 1 for factor in factors)
    ordered = [factor for _, factor in sorted(zip(lengths, factors, strict=True))]
    assert ordered[0] == 1


def test_the_factor_is_a_power_of_the_ratio() -> None:
    batch = [Completion("Q", "x" * n, node=f"n{i}") for i, n in enumerate([100] * 9 + [160])]
    *others, one = LengthScaling(tolerance=1.0, strength=2.0).factors(batch)
    assert others == [1.0] * 9
    spread = 0.3  # the prior, since the batch is too small for an estimate
    assert one == pytest.approx((100 * math.exp(spread) / 160) ** (2 / spread))
    for refused in ({"strength": -1}, {"tolerance": -1}, {"tolerance": math.nan}, {"past": False}):
        with pytest.raises(ValueError, match="LengthScaling"):
            LengthScaling(**refused)  # type: ignore[arg-type]


def test_rewards_are_scaled_and_penalties_are_not() -> None:
    texts = ["word " * 40] * 7 + ["word " * 160]
    batch = [Completion("Q", text, node=f"n{i // 2}") for i, text in enumerate(texts)]
    scaled = LengthScaling(tolerance=0.5).apply(
        [1.0, None, 0.0, -1.0, 1.0, 1.0, math.nan, 1.0], batch
    )
    assert scaled[:6] == [1.0, None, 0.0, -1.0, 1.0, 1.0]
    assert scaled[6] is not None
    assert math.isnan(scaled[6])
    # Divided by the group's deviation, any reward above 0 would become a full advantage.
    assert scaled[7] == 0
    # Scaling a penalty would make it a gain.
    assert LengthScaling().apply([-1.0] * 8, batch) == [-1.0] * 8
    with pytest.raises(ValueError, match="expected 8, got 1"):
        LengthScaling().apply([1.0], batch)


def group(lengths: list[int], nodes: int) -> Group:
    return [Member(i, n, f"n{i % nodes}", 1.0) for i, n in enumerate(lengths)]


@pytest.mark.slow
def test_honest_nodes_are_convicted_at_most_at_alpha() -> None:
    rng, convicted, runs = random.Random(0), 0, 200
    for _ in range(runs):
        memory, hit = NodeMemory(alpha=0.2, max_nodes=4), False
        for _ in range(60):
            # Lengths for one prompt depend on each other through it; exchangeable is enough.
            scale = rng.choice((10, 100, 1000))
            memory.observe([group([rng.randint(scale, 2 * scale) for _ in range(8)], 4)])
            hit = hit or bool(memory.convicted())
        convicted += hit
    # 0.2 is the bound; at this rate, 200 runs would exceed 56 once in a thousand times.
    assert convicted <= 56


def test_threat_an_honest_past_gives_no_credit_for_padding() -> None:
    memory, rng = NodeMemory(), random.Random(0)
    for _ in range(1000):
        # Ordinary work, by chance a little shorter than the others', as after taking off a habit.
        lengths = [rng.randint(40, 90)] + [rng.randint(50, 99) for _ in range(3)]
        memory.observe([group(lengths, 4)])
        assert memory.convicted() == {}
    for _ in range(60):
        memory.observe([group([300, *(rng.randint(50, 99) for _ in range(3))], 4)])
    assert set(memory.convicted()) == {"n0"}


def test_very_short_work_does_not_frame_other_nodes() -> None:
    memory, rng = NodeMemory(), random.Random(1)
    for _ in range(300):
        lengths = [rng.randint(50, 99) for _ in range(8)]
        lengths[3] = lengths[7] = 1
        memory.observe([group(lengths, 4)])
    assert memory.convicted() == {}


def test_memory_is_bounded_and_can_be_restored() -> None:
    memory = NodeMemory(max_nodes=3)
    for _ in range(50):
        memory.observe([group([10, 10, 99, 10, 10, 99], 3), group(list(range(1, 101)), 50)])
    assert len(memory._pairs) <= 3 * 2
    assert pickle.loads(pickle.dumps(memory)).convicted() == memory.convicted()
    with pytest.raises(ValueError, match="max_nodes"):
        NodeMemory(max_nodes=2)


def test_tail_probability_matches_students_t() -> None:
    # Quantiles of t with 9 degrees of freedom, from the tables.
    for z, p in ((0.0, 0.5), (1.833, 0.05), (2.821, 0.01), (4.297, 0.001)):
        assert tail(z) == pytest.approx(p, rel=2e-3)
        assert tail(-z) == pytest.approx(1 - p, rel=2e-3)


HOSTILE = {
    "empty": "",
    "surrogates": "a\ud800 " * 10,
    "one word": "x" * 1_000_000,
    "repetition": "the same step again and again " * 33_000,
    "lines": "\n" * 1_000_000,
    "dots": ". " * 500_000,
    "zero width": "\u200b" * 1_000_000,
    "wide lower case": "İ " * 300_000,
    "ten megabytes": "so 5 + 3 = 8 apples. " * 480_000,
}


@pytest.mark.slow
@pytest.mark.timeout(120)  # quadratic work would take longer
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sizes_are_read_once(name: str) -> None:
    text = HOSTILE[name]
    usual = [Completion("How many apples?", f"5 + {i} apples are 8", node="a") for i in range(5)]
    batch = [*usual, Completion("How many apples?", text, node="b"), Completion(text, text)]
    verdicts = LengthVerifier().verify(batch)
    assert len(verdicts) == 7
    assert len(LengthScaling().factors(batch)) == 7


FIELDS = st.tuples(
    st.sampled_from(["p", "q", ""]),
    st.text(st.characters(), max_size=60),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, "g", 7]),
    st.sampled_from([None, "8", "x", ""]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(FIELDS, max_size=12))
def test_any_batch_gets_one_verdict_each(rows: list[tuple[str, str, str, object, str]]) -> None:
    batch = [
        Completion(p, t, node=n, group=g, reference=r)  # type: ignore[arg-type]
        for p, t, n, g, r in rows
    ]
    verifier = LengthVerifier(memory=NodeMemory())
    for verdict, completion in zip(verifier.verify(batch), batch, strict=True):
        for finding in verdict.findings:
            if finding.char_span is not None:
                start, end = finding.char_span
                assert 0 <= start < end <= len(completion.text)


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's folder")
def test_real_completions_pass() -> None:
    rows = [json.loads(line) for line in SOLUTIONS.open(encoding="utf-8")]
    batch = [Completion(r["question"], r["completion"], node=r["model"]) for r in rows]
    sizes = defaultdict[str, int](int)
    for row in rows:
        sizes[row["question"]] += 1
    assert set(sizes.values()) == {2}
    assert sum(v.rejected for v in LengthVerifier().verify(batch)) <= 0.005 * len(batch)


@pytest.mark.slow
@pytest.mark.timeout(300)  # 50 million comparisons of pairs would take longer
def test_one_question_asked_ten_thousand_times_is_not_quadratic() -> None:
    rng = random.Random(0)
    words = [f"word{i}" for i in range(400)]
    batch = [
        Completion("Q", " ".join(rng.choices(words, k=rng.randint(20, 30))), node=f"n{i % 4}")
        for i in range(10_000)
    ]
    verdicts = LengthVerifier(memory=NodeMemory()).verify(batch)
    assert sum(v.rejected for v in verdicts) <= 10


QUESTION = "Ann has 12 trays with 9 roses each and gives 30 roses to Ben. How many are left?"
STEPS = "Ann has 12 * 9 = 108 roses on her trays. She gives 30 away, so 108 - 30 = 78 are left. "


def test_each_kind_of_redundancy_has_its_share() -> None:
    check = "Check: 78 + 30 = 108 and 108 / 9 = 12 trays, as the question says. "
    other = "Let x be the roses that are left. x + 30 = 12 * 9, x + 30 = 108, x = 78. "
    working = measure(STEPS + check + other, QUESTION)
    assert working.repeated + working.echoed < 0.1
    assert measure(STEPS * 3, QUESTION).repeated > 0.6
    assert measure(STEPS + f" {QUESTION}" * 3, QUESTION).blatant
    assert measure(STEPS + QUESTION, QUESTION).echoed > 0.4


def test_short_neighbour_does_not_reduce_the_reward_of_a_right_answer() -> None:
    # A sender of short completions could do this if the veto has left only two or three.
    right = Completion("How much?", "word " * 40 + "\n#### 7", reference="7", node="a")
    short = [Completion("How much?", "#### 9", reference="7", node=node) for node in "bc"]
    for others in (short[:1], short):
        assert LengthScaling(tolerance=0.5).factors([right, *others])[0] == 1.0
    # The same three, but now the long one differs from enough equals.
    equals = [Completion("How much?", "word " * 4 + "\n#### 7", node=node) for node in "bcd"]
    assert LengthScaling(tolerance=0.5).factors([right, *equals])[0] < 0.2


def rounds_of(wordy: float, right: float, *, rounds: int = 12) -> list[list[Completion]]:
    """Rounds of eight questions and five nodes, where n4 writes ``wordy`` times as much."""
    rng = random.Random(0)
    found = []
    for number in range(rounds):
        batch = []
        for question in range(8):
            for node in range(5):
                said = 7 if rng.random() < (right if node == 4 else 0.6) else 9
                words = int(rng.lognormvariate(4.5, 0.25) * (wordy if node == 4 else 1))
                text = f"{'word ' * words}\n#### {said}"
                prompt = f"Q{number}.{question}"
                batch.append(Completion(prompt, text, reference="7", node=f"n{node}"))
        found.append(batch)
    return found


def mean_factor(scaling: LengthScaling, rounds: list[list[Completion]], node: str = "n4") -> float:
    """Mean factor of a node's right answers in the last half of the rounds."""
    kept = [
        factor
        for batch in rounds
        for completion, factor in zip(batch, scaling.factors(batch), strict=True)
        if completion.node == node and completion.text.endswith(" 7")
    ]
    return sum(kept[len(kept) // 2 :]) / len(kept[len(kept) // 2 :])


def test_a_node_that_thinks_at_length_is_compared_with_its_own_past() -> None:
    rounds = rounds_of(5, right=0.6)
    assert mean_factor(LengthScaling(tolerance=0.5, past=False), rounds) < 0.05
    assert mean_factor(LengthScaling(tolerance=0.5), rounds) > 0.5
    assert mean_factor(LengthScaling(), rounds) == 1.0
    # It becomes long for its own past too, once it writes still more.
    longer = [*rounds, *rounds_of(15, right=1.0)]
    for tolerance in (0.5, None):
        scaling = LengthScaling(tolerance=tolerance)
        for batch in rounds:
            scaling.factors(batch)
        assert mean_factor(scaling, longer[len(rounds) :]) < 0.05


def test_the_first_large_batch_of_a_model_that_thinks_at_length_does_not_convict_it() -> None:
    scaling = LengthScaling()
    for batch in (rounds_of(5, right=0.9, rounds=12), rounds_of(5, right=0.9, rounds=2)):
        scaling.factors([c for of_round in batch for c in of_round])
        assert isinstance(scaling.past, UsualLengths)
        assert scaling.past.longer_when_paid() == frozenset()


def test_threat_padding_of_paid_answers_never_becomes_usual() -> None:
    # Its right answers are long, its wrong ones like the others'.
    rounds = rounds_of(4, right=1.0)
    honest = rounds_of(1, right=0.0)
    mixed = [[*a, *b] for a, b in zip(rounds, honest, strict=True)]
    for played in (rounds, mixed):
        for tolerance in (0.5, None):
            assert mean_factor(LengthScaling(tolerance=tolerance), played) < 0.05


@pytest.mark.parametrize(("wordy", "wrong"), [(1.3, 0), (1.5, 1)])
def test_threat_a_little_longer_every_round_loses_the_reward(wordy: float, wrong: int) -> None:
    # Each answer is within the honest range; all of them together are not, even with as many wrong
    # ones of ordinary length.
    rounds = rounds_of(wordy, right=1.0, rounds=30)
    for batch, others in zip(rounds, rounds_of(1, right=0.0, rounds=30), strict=True):
        batch += others * wrong
    scaling = LengthScaling()
    for batch in rounds:
        scaling.factors(batch)
    assert isinstance(scaling.past, UsualLengths)
    assert scaling.past.longer_when_paid() == {"n4"}
    assert mean_factor(scaling, rounds[:8]) < 0.5
    assert mean_factor(scaling, rounds[:8], "n0") == 1.0


def test_threat_one_nodes_short_right_answers_do_not_make_others_long() -> None:
    scaling = LengthScaling()
    mean_factor(scaling, rounds_of(0.05, right=1.0, rounds=24))
    assert isinstance(scaling.past, UsualLengths)
    assert scaling.past.longer_when_paid() == frozenset()


@pytest.mark.slow
def test_model_that_always_writes_long_is_not_longer_when_paid() -> None:
    for wordy in (1.0, 1.35, 2.0, 5.0, 10.0):
        scaling = LengthScaling()
        assert mean_factor(scaling, rounds_of(wordy, right=0.6, rounds=40)) == 1.0
        assert isinstance(scaling.past, UsualLengths)
        assert scaling.past.longer_when_paid() == frozenset()


def test_threat_wrong_answers_in_an_own_group_excuse_nothing() -> None:
    # A node that answers a prompt alone is only compared with itself, and would excuse itself.
    def alone(wrong: int) -> list[Completion]:
        said = [("word " * 100, 7)] * 5 + [("word " * 300, 7)] + [("word " * wrong, 9)] * 6
        return [
            Completion(f"Q{n}", f"{text}\n#### {answer}", reference="7", node="a")
            for n in range(8)
            for text, answer in said
        ]

    scaling = LengthScaling()
    for _ in range(4):
        assert set(scaling.factors(alone(1000))) == {1.0}
    assert isinstance(scaling.past, UsualLengths)
    assert scaling.past.known() == {}


def test_without_a_reference_nothing_is_learnt() -> None:
    scaling = LengthScaling()
    for batch in rounds_of(5, right=0.6, rounds=3):
        scaling.factors([Completion(c.prompt, c.text, node=c.node) for c in batch])
    assert isinstance(scaling.past, UsualLengths)
    assert scaling.past.known() == {}
    assert scaling.past.state_dict() == UsualLengths().state_dict()
