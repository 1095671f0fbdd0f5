"""Evidence about a node counts a rollout in several segments once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion
from grpo_guard.core.verdict import Cause, Finding, Outcome, abstain, accept, reject
from grpo_guard.nodes.counts import Counts
from grpo_guard.nodes.e_process_memory import EProcessMemory
from grpo_guard.nodes.intake import intake

VERDICTS = {
    Outcome.ACCEPT: accept("rule"),
    Outcome.ABSTAIN: abstain("rule", Cause.TIMEOUT, "slow"),
    Outcome.REJECT: reject("rule", Cause.SCREENED, "poison"),
}
WORST = (Outcome.REJECT, Outcome.ABSTAIN, Outcome.ACCEPT)


def segment(text, rollout, prompt="p", node="bob"):
    return Completion(prompt, text, node=node, rollout=rollout, group="g")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc") | st.none(), st.sampled_from(WORST)),
        min_size=1,
        max_size=9,
    ),
    st.randoms(),
)
def test_ledger_has_one_entry_per_rollout_with_its_worst_outcome(drawn, rng):
    rows = [
        (segment(f"{i}", rollout), VERDICTS[outcome]) for i, (rollout, outcome) in enumerate(drawn)
    ]
    taken = intake(*zip(*rows, strict=True), round=1)
    expected = [outcome for rollout, outcome in drawn if rollout is None]
    for name in "abc":
        of_rollout = {outcome for rollout, outcome in drawn if rollout == name}
        expected += [next(worst for worst in WORST if worst in of_rollout)] if of_rollout else []
    assert sorted(entry.outcome for entry in taken.entries) == sorted(expected)
    rng.shuffle(rows)
    again = intake(*zip(*rows, strict=True), round=1)
    assert sorted(again.entries) == sorted(taken.entries)


def test_rollout_entry_has_the_kinds_of_all_segments():
    kinds = [reject("rule", findings=(Finding(kind, "x"),)) for kind in ("forged", "injected")]
    batch = [segment("1", "r", "p"), segment("2", "r", "p 1"), segment("3", "r", "p 2")]
    (entry,) = intake(batch, [*kinds, accept("rule")], round=1).entries
    assert (entry.outcome, entry.kinds) == (Outcome.REJECT, ("forged", "injected"))


def e_values_of(rows):
    """The evidence against each node, from (prompt, node, rollout, has the finding)."""
    counts = Counts(EProcessMemory(), 1e-3, 2.0)
    found = Finding("taken_back", "x")
    counts.judged(
        [segment(f"{i}", r, prompt, node) for i, (prompt, node, r, _) in enumerate(rows)],
        [accept("rule")] * len(rows),
        [found if having else None for *_, having in rows],
    )
    return counts.e_processes.log_e_values()


PEERS = [("q", "carol", None, False), ("q", "dave", None, False), ("q", "erin", None, True)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=4), st.randoms())
def test_rollout_counts_once_whatever_its_number_of_segments(rollouts, rng):
    whole = [("q", "bob", f"{i}", having) for i, (having, _) in enumerate(rollouts)]
    cut = []
    for i, (having, count) in enumerate(rollouts):
        where = rng.randrange(count)  # the segment with the finding
        cut += [("q", "bob", f"{i}", having and j == where) for j in range(count)]
    rng.shuffle(cut)
    assert e_values_of([*cut, *PEERS]) == pytest.approx(e_values_of([*whole, *PEERS]))


def test_finding_in_a_later_segment_counts():
    whole = [("q", "bob", "r", True)]
    cut = [("q", "bob", "r", False), ("q and more", "bob", "r", True)]
    assert e_values_of([*cut, *PEERS]) == pytest.approx(e_values_of([*whole, *PEERS]))


def test_one_label_for_several_prompts_hides_no_answer():
    peers = [(f"q{i}", node, None, False) for i in range(4) for node in ("carol", "dave", "erin")]
    lone = [(f"q{i}", "bob", None, True) for i in range(4)]
    joined = [(f"q{i}", "bob", "all", True) for i in range(4)]
    assert e_values_of([*joined, *peers]) == pytest.approx(e_values_of([*lone, *peers]))
    assert e_values_of([*joined, *peers])["bob"] > 1


def test_order_of_segments_changes_nothing():
    rows = [("q", "bob", "r", False), ("q1", "bob", "r", True), ("q", "bob", "s", False), *PEERS]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert e_values_of(shuffled) == pytest.approx(e_values_of(rows))
