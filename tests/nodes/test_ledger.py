"""The ledger behind a guard: what counts, and what does not."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from grpo_guard import AllOf, Cascade, Completion, Guard
from grpo_guard.core.verdict import Cause, Finding, Outcome, Verdict, abstain, accept, reject
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State
from tests.nodes.swarm_ledger import NODES, Says, counts, one_in, play, played


@pytest.mark.parametrize("own_prompts", [False, True])
def test_node_with_one_in_twelve_rejected_is_found_alone(ledger, own_prompts):
    form = {"prompts": 2, "each": 12} if own_prompts else {}
    play(ledger, 30, own_prompts=own_prompts, **form)
    states = {s.node: s.state for s in ledger.standings()}
    assert states == {n: State.HARD if n == "mal" else State.CLEAR for n in NODES}
    assert ledger.standings()[0].node == "mal"
    assert ledger.standing("mal").reasons[0][0] == "odd"
    assert ledger.degraded is None


def test_guard_records_and_exclusions_are_no_evidence(ledger):
    guard = Guard(AllOf(ExclusionVerifier(ledger), Says()), ledger=ledger)
    play(ledger, 30)
    before = counts(ledger)["mal"]
    batch, _ = played(30)
    review = guard.review(batch)
    rejected = {c.node for c, v in zip(batch, review.verdicts, strict=True) if v.rejected}
    assert rejected == {"mal"}
    assert counts(ledger)["mal"] == (before[0] + 24, before[1], 0)
    # A rejection by another verifier still counts.
    bad = replace(batch[-1], text="bad", slot=99)
    assert guard.review([bad]).verdicts[0].rejected
    assert counts(ledger)["mal"] == (before[0] + 25, before[1] + 1, 0)


class Wide(Verdict):
    """A verdict of a unique size, so that the next one is allocated at the address of the last."""

    __slots__ = tuple(f"more_{i}" for i in range(40))


def test_verdicts_created_on_access_are_read_once_each(ledger):
    class Made(Sequence):
        def __len__(self):
            return 100

        def __getitem__(self, i):
            if i >= 100:
                raise IndexError
            return Wide(Outcome.REJECT if i % 5 < 2 else Outcome.ACCEPT, Cause.JUDGED, "odd")

    ledger.record([Completion(f"q{i}", "x", node="a") for i in range(100)], Made())
    assert counts(ledger)["a"] == (100, 40, 0)


def test_exclusions_in_a_cascade_are_not_counted(ledger):
    play(ledger, 30)
    before = counts(ledger)["mal"]
    for order in ((ExclusionVerifier(ledger), Says()), (Says(), ExclusionVerifier(ledger))):
        Guard(Cascade(*order), ledger=ledger).review(played(30)[0])
    assert counts(ledger)["mal"] == before


def test_node_that_stops_is_released(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite", half_life=5)
    play(ledger, 30)
    assert ledger.state("mal") is State.HARD
    play(ledger, 60, every=0, start=30)
    assert ledger.state("mal") is State.CLEAR
    play(ledger, 30, start=90, every=4)
    assert ledger.state("mal") is State.HARD


def test_repeated_batch_counts_once(ledger):
    batch, verdicts = played(0, {("mal", 3)})
    for _ in range(3):
        ledger.record(batch, verdicts)
    half = len(batch) // 2  # and in parts, as two ranks might send it
    ledger.record(batch[:half], verdicts[:half])
    ledger.record(batch[half:], verdicts[half:])
    assert counts(ledger)["mal"] == (24, 1, 0)


def test_equal_completions_of_one_batch_count_each(ledger):
    batch = [Completion("p", "same", node="a", round=0)] * 5
    ledger.record(batch, [reject("says")] * 5)
    ledger.record(batch, [reject("says")] * 5)
    assert counts(ledger) == {"a": (5, 5, 0)}


def test_unnamed_rounds(ledger):
    batch, verdicts = played(0)
    batch = [replace(c, round=None) for c in batch]
    for _ in range(3):
        ledger.record(batch, verdicts)  # a retry
    assert counts(ledger)["ann"] == (24, 0, 0)
    play_nameless = [replace(c, text=c.text + "!") for c in batch]
    ledger.record(play_nameless, verdicts)
    assert counts(ledger)["ann"] == (48, 0, 0)


@pytest.mark.parametrize("size", [1, 7, 96, 192])
def test_batches_without_rounds_are_gathered(ledger, size):
    batch, verdicts = [], []
    for t in range(12):
        bad = one_in(3, chance=random.Random(t))
        for c, v in zip(*played(t, bad), strict=True):
            batch.append(replace(c, round=None))
            verdicts.append(v)
    order = list(range(len(batch)))
    if size < 96:  # single completions arrive as they are ready
        order.sort(key=lambda i: (i // 96, random.Random(i).random()))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        ledger.record([batch[i] for i in part], [verdicts[i] for i in part])
    assert {s.node for s in ledger.standings() if s.state is State.HARD} == {"mal"}


def test_single_node_makes_no_rounds_and_fills_no_disk(ledger, monkeypatch):
    monkeypatch.setattr("grpo_guard.nodes.rounds.FULL_MOST", 50)
    for t in range(120):
        ledger.record([Completion(f"p {t}", "x", node="a")], [accept("says")])
    assert ledger.standing("a").last_round == 2


def test_abstention_is_no_evidence_and_may_be_judged_later(ledger):
    batch = [Completion("p", "x", node="a", round=0)]
    ledger.record(batch, [abstain("says", Cause.TIMEOUT)])
    assert counts(ledger) == {"a": (0, 0, 1)}
    ledger.record(batch, [reject("says")])
    assert counts(ledger) == {"a": (1, 1, 1)}


def test_abstentions_accuse_no_node(ledger):
    for t in range(30):
        batch, verdicts = played(t)
        verdicts = [
            abstain("says", Cause.TIMEOUT) if c.node == "mal" else v
            for c, v in zip(batch, verdicts, strict=True)
        ]
        ledger.record(batch, verdicts)
    assert {s.state for s in ledger.standings()} == {State.CLEAR}


def test_completion_without_a_node_counts_for_none(ledger):
    ledger.record([Completion("p", "x", round=0), Completion("p", "x", node="", round=0)],
                  [reject("says")] * 2)  # fmt: skip
    assert counts(ledger) == {"": (1, 1, 0)}
    [verdict] = ExclusionVerifier(ledger).verify([Completion("p", "x")])
    assert verdict.cause is Cause.NOT_APPLICABLE


def test_one_node_cannot_change_the_round(ledger):
    for t in range(30):
        batch, verdicts = played(t, one_in(6, chance=random.Random(t)))
        batch = [replace(c, round=10**15 - t) if c.node == "mal" else c for c in batch]
        ledger.record(batch, verdicts)
    assert ledger.state("mal") is State.HARD
    assert ledger.standing("ann").last_round == 29


def test_restarted_run_continues_the_counts(ledger):
    play(ledger, 20, every=0)
    play(ledger, 30, every=6)  # round 0 again, with different completions
    assert ledger.state("mal") is State.HARD


def test_odd_prompt_of_one_node_does_not_count_twelve_times(ledger):
    form = {"own_prompts": True, "prompts": 2, "each": 12}
    for t in range(100):
        odd = {("mal", i) for i in range(12)} if t == 50 else ()
        ledger.record(*played(t, odd, **form))
    assert ledger.state("mal") is State.CLEAR


def test_odd_shared_prompt_does_not_count_twelve_times(ledger):
    for t in range(100):
        odd = {("mal", i) for i in range(12)} if t in (10, 50) else ()
        ledger.record(*played(t, odd, prompts=2, each=12))
        assert ledger.state("mal") is State.CLEAR


@pytest.mark.slow
def test_large_group_does_not_hide_its_poison(ledger):
    for t in range(30):
        bad = {("mal", i) for i in range(240)} if t % 2 else ()
        ledger.record(*played(t, bad, prompts=1, each=240, own_prompts=True))
    assert {s.node for s in ledger.standings() if s.state is State.HARD} == {"mal"}


def test_work_declared_late_is_judged_with_the_newest_round(ledger):
    for t in range(30):
        batch, verdicts = played(t, one_in(6, chance=random.Random(t)))
        ledger.record(batch[:72], verdicts[:72])
        # A batch of a single node, with rounds of its own choosing.
        late = [replace(c, round=max(0, t - 5)) for c in batch[72:]]
        ledger.record(late, verdicts[72:])
    assert counts(ledger)["mal"][0] == 30 * 24
    assert {s.node for s in ledger.standings() if s.state is State.HARD} == {"mal"}


def test_ranks_may_record_their_parts_in_any_order(tmp_path):
    standings = []
    for seed in (None, 1, 2):
        chance, rounds = random.Random(0), []
        ledger = EvidenceLedger(tmp_path / f"{seed}.sqlite")
        for t in range(40):
            batch, verdicts = played(t, one_in(12, chance=chance))
            rounds += [(t, batch[k::3], verdicts[k::3]) for k in range(3)]
        if seed is not None:  # ranks are up to one round apart
            order = random.Random(seed)
            rounds.sort(key=lambda part: part[0] + order.random() * 1.5)
        for _, batch, verdicts in rounds:
            ledger.record(batch, verdicts)
        standings.append(
            {s.node: (s.state, s.judged, s.rejected, s.log_e) for s in ledger.standings()}
        )
    assert standings[0] == standings[1] == standings[2]


def test_empty_slots_are_evidence_of_their_own_kind(ledger):
    owed = dict.fromkeys(NODES, 24)
    for t in range(60):
        ledger.record(*played(t))
        ledger.record_slots(owed, Counter({"mal": 16, "ann": t % 20 == 0}), round=t)
        ledger.record_slots(owed, Counter({"mal": 16, "ann": t % 20 == 0}), round=t)
    standing = ledger.standing("mal")
    assert (standing.owed, standing.empty) == (60 * 24, 60 * 16)
    assert (standing.state, standing.withholds) == (State.CLEAR, State.SOFT)
    assert ledger.standing("ann").withholds is State.CLEAR
    assert ExclusionVerifier(ledger).verify(played(60)[0])[-1].accepted


@pytest.mark.parametrize("empty", [{"mal": 25}, {"mal": -1}, {"who": 1}, {"mal": 2**70}])
def test_invalid_slots_are_refused(ledger, empty):
    with pytest.raises(ValueError, match="expected"):
        ledger.record_slots(dict.fromkeys(NODES, 24), empty, round=0)


def test_recurring_phrases_shared_by_nodes_are_reported(ledger):
    texts = {
        "x": "All  hail to the THIEF.",
        "y\x1b[2J": "And so: all hail to the thief",
        "z": "something else entirely",
    }
    for t in range(3):
        batch = [Completion(f"p {t}", text, node=n, round=t) for n, text in texts.items()]
        found = [Finding("recurring_phrase", "recurs", (0, len(c.text))) for c in batch]
        ledger.record(batch, [reject("recurrence", findings=(f,)) for f in found])
    [hint] = ledger.sybil_hints()
    assert hint.nodes == ("x", "y\\x1b[2J")
    assert hint.excerpt == "All hail to the THIEF."
    assert hint.count == 3
