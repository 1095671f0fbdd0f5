"""Spot checks: what is checked, what is found, and what a hostile node can do about it."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import AllOf, Completion, CompletionVerifier, Guard
from grpo_guard.config import GuardConfig
from grpo_guard.core.testing import VerifierContract
from grpo_guard.core.verdict import NOT_CHECKED, Cause, abstain, accept, reject
from grpo_guard.guard.metrics import metrics
from grpo_guard.guard.spot_checks import SpotCheck, commitment
from grpo_guard.guard.spot_odds import odds
from grpo_guard.nodes.checks import MAX_NODES, ChecksOfNodes
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.store import NodeStore

KEY = "a key of sixteen characters"


class Says(CompletionVerifier):
    """Rejects "bad", abstains on "down", records its input."""

    name = "says"

    def __init__(self):
        self.seen = []

    def verify(self, batch):
        self.seen += batch
        return [
            reject(self.name)
            if "bad" in c.text
            else abstain(self.name, Cause.TIMEOUT)
            if "down" in c.text
            else accept(self.name)
            for c in batch
        ]


def sent(node, count, bad=(), say="good", **fields):
    texts = [f"{'bad' if i in bad else say} {i}" for i in range(count)]
    return [Completion("p", text, node=node, slot=i, **fields) for i, text in enumerate(texts)]


def settled(share=0.1, member=None, **options):
    check = SpotCheck(member or Says(), share=share, settled_after=1, key=KEY, **options)
    check.verify(sent("a", 1))
    check.verify(sent("b", 1))
    check.member.seen.clear() if isinstance(check.member, Says) else None
    return check


class TestContract(VerifierContract):
    examples = ((Completion("p", "good"), "accept"), (Completion("p", "bad"), "reject"))
    remembers = True

    def make(self):
        return SpotCheck(Says(), share=1.0)


@given(st.integers(1, 60), st.floats(0.01, 1))
def test_share_is_honoured_with_one_verdict_each_in_order(count, share):
    check = settled(share)
    verdicts = check.verify(sent("a", count))
    seen = check.member.seen
    assert len(verdicts) == count
    assert len(seen) == len({c.slot for c in seen}) == odds(count, 0, share).checked
    unseen = [v.findings and v.findings[0].kind == NOT_CHECKED for v in verdicts]
    assert [i for i, v in enumerate(unseen) if not v] == sorted(c.slot for c in seen)
    assert all(v.accepted for v in verdicts)


def test_every_position_is_equally_likely():
    counts = Counter()
    check = settled(0.2)
    for t in range(2000):
        check.member.seen.clear()
        check.verify(sent("a", 10, say=f"text {t}"))
        counts.update(c.slot for c in check.member.seen)
    assert sum(counts.values()) == 4000
    assert sum((counts[i] - 400) ** 2 / 320 for i in range(10)) < 30  # chi-square, p < 0.001


@settings(max_examples=30)
@given(st.lists(st.text(max_size=5), max_size=8), st.booleans())
def test_threat_other_nodes_do_not_affect_a_nodes_draw(texts, first):
    mine, others = sent("a", 20), [Completion("q", t, node="b") for t in texts]
    alone, beside = settled(), settled()
    alone.verify(mine)
    beside.verify(others + mine if first else mine + others)
    assert [c for c in beside.member.seen if c.node == "a"] == alone.member.seen


def slots(check, say="x"):
    check.member.seen.clear()
    check.verify(sent("a", 200, say=say))
    return {c.slot for c in check.member.seen}


def test_draw_is_repeatable_with_the_same_key_only():
    assert slots(settled()) == slots(settled())
    assert slots(settled(), "x") != slots(settled(), "y")
    other = SpotCheck(Says(), share=0.1, settled_after=1, key=KEY + "!")
    other.verify(sent("a", 1))
    other.verify(sent("b", 1))
    assert slots(settled()) != slots(other)


def test_threat_resent_poison_is_drawn_anew():
    check = settled()
    seen = [slots(check) for _ in range(60)]
    assert len(set(map(frozenset, seen))) == 60
    assert len(set.union(*seen)) > 190


class Coarse(Says):
    smallest_p = 0.01


def test_combinators_never_reject_unchecked_completions():
    verdicts = (~settled(0.1)).verify(sent("a", 50))
    assert Counter(v.outcome.value for v in verdicts) == {"reject": 5, "accept": 45}
    with pytest.raises(ValueError, match="alpha"):  # a budget too small for the member to reject
        AllOf(SpotCheck(Coarse()), alpha=1e-3)


def test_one_rejection_checks_the_whole_batch_of_its_node_only():
    check = settled()
    verdicts = check.verify([*sent("a", 50, bad=range(40)), *sent("b", 50)])
    assert [v.rejected for v in verdicts[:50]] == [i < 40 for i in range(50)]
    assert Counter(c.node for c in check.member.seen) == {"a": 50, "b": 5}
    assert len({(c.node, c.slot) for c in check.member.seen}) == 55  # nothing is checked twice


def test_caught_node_is_checked_fully_until_enough_is_clean():
    check = SpotCheck(Says(), share=0.1, newcomers=0.5, settled_after=20, key=KEY)

    def looked_at(batch):
        check.member.seen.clear()
        check.verify(batch)
        return len(check.member.seen)

    assert looked_at(sent("a", 10)) == 5  # new
    assert looked_at(sent("a", 30)) == 15
    assert looked_at(sent("a", 30)) == 3  # no longer a newcomer
    assert looked_at(sent("a", 10, bad=range(10))) == 10
    assert looked_at(sent("a", 10)) == 10
    assert looked_at(sent("a", 10)) == 10
    assert looked_at(sent("a", 10)) == 1
    assert looked_at([Completion("p", f"{i}") for i in range(10)]) == 5  # anonymous: always new


def test_outage_neither_clears_nor_convicts():
    check = SpotCheck(Says(), share=0.1, settled_after=5, key=KEY)
    verdicts = check.verify(sent("a", 20, say="down"))
    assert all(v.abstained for v in verdicts)  # otherwise an outage would silently pay rewards
    assert check.state_dict()["nodes"] == []


def test_failing_member_accepts_nothing_unchecked():
    class Broken(CompletionVerifier):
        name = "broken"

        def verify(self, batch):
            raise OSError("no model")

    verdicts = SpotCheck(Broken(), share=0.1).verify(sent("a", 20))
    assert Counter(v.outcome.value for v in verdicts) == {"abstain": 20}


class Dodged(Says):
    author_can_abstain = "by a text that is long enough"


def test_threat_unchecked_copies_of_abstaining_poison_earn_nothing():
    batch = [*sent("a", 50), *sent("mal", 50, say="down"), *sent("mal", 50)]
    check = settled(member=Dodged())
    verdicts = check.verify(batch)
    for completion, verdict in zip(batch, verdicts, strict=True):
        assert verdict.accepted == ("down" not in completion.text)
    assert Counter(c.node for c in check.member.seen) == {"a": 5, "mal": 100}
    assert not check.memory.of(["mal"])["mal"].caught


def test_abstention_that_no_text_can_cause_affects_only_itself():
    check = settled(0.5)
    check.verify([c for i in range(40) for c in sent("a", 1, say="down" if i % 8 == 0 else "good")])
    assert len(check.member.seen) == 20


def test_detection_rate_matches_the_computed_odds():
    hits, rounds = 0, 600
    for t in range(rounds):
        check = settled(0.1)
        batch = sent("a", 40, bad=range(3), say=f"{t}")
        verdicts = check.verify([Completion(f"p {t}", c.text, node="a") for c in batch])
        hits += any(v.rejected for v in verdicts)
    wanted = odds(40, 3, 0.1).caught
    assert abs(hits / rounds - wanted) < 4 * (wanted * (1 - wanted) / rounds) ** 0.5


def test_unchecked_completions_are_counted_but_are_not_evidence(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    guard = Guard(settled(0.1) & Says(), ledger=ledger)
    alone = Guard(settled(0.1), ledger=EvidenceLedger(tmp_path / "b.sqlite"))
    verdicts = alone.review(sent("a", 50, round=0)).verdicts
    assert metrics(verdicts)["guard/not_checked_rate"] == 0.9
    assert alone.ledger.standing("a").judged == 5
    beside = guard.review(sent("a", 50, round=0)).verdicts
    assert metrics(beside)["guard/not_checked_rate"] == 0.9
    assert ledger.standing("a").judged == 50  # the other verifier checked all of them
    assert "guard/not_checked_rate" not in metrics([accept("says")])


def test_beacon_decides_the_draw_and_broken_commitments_are_checked_fully():
    mine, theirs = sent("a", 30), sent("b", 30)
    committed = {"a": commitment(mine), "b": commitment(sent("b", 30, say="other"))}
    one, other = settled(), SpotCheck(Says(), share=0.1, newcomers=0.1)
    for check in (one, other):
        check.begin_round("a beacon of this round", committed)
        check.member.seen.clear()
        check.verify(mine + theirs)
    # Anyone can recompute the choice, whatever their own key was.
    assert one.member.seen == other.member.seen
    assert Counter(c.node for c in one.member.seen) == {"a": 3, "b": 30}
    # What passed unchecked does not pass again under the same value.
    one.member.seen.clear()
    one.verify(mine)
    assert len(one.member.seen) == 30


def test_threat_ids_are_bound_next_to_an_image():
    image = [{"role": "user", "content": [object()]}]
    one, other = (commitment([Completion(image, "t", completion_ids=[i])]) for i in (1, 2))
    assert one != other


@pytest.mark.parametrize("change", ["text", "slot", "reference", "prompt", "task", "round"])
def test_commitment_binds_every_field_and_the_order(change):
    value = 7 if change in ("slot", "round") else "changed"
    fields = {"prompt": "p", "text": "t", change: value}
    first, second = Completion("p", "t"), Completion("p", "u")
    assert commitment([Completion(**fields)]) != commitment([first])
    assert commitment([first, second]) != commitment([second, first])
    assert commitment([first]) + commitment([]) != commitment([]) + commitment([first])


def test_threat_unserialisable_completions_neither_raise_nor_abstain():
    odd = [
        Completion("p", "\ud800", node="a"),
        Completion([{"role": "user", "content": object()}], "t", node="a"),
        Completion("p", "t", completion_ids=[2**62], node="\x00"),
    ]
    assert all(v.accepted for v in settled().verify(odd * 20))


def test_threat_invented_names_do_not_displace_caught_nodes():
    memory = ChecksOfNodes(None, "checks")
    memory.add({"mal": 0}, frozenset({"mal"}), 5)
    for start in range(0, 2 * MAX_NODES, 4096):
        memory.add({f"n{start + k}": 1 for k in range(4096)}, frozenset(), 5)
    assert memory.of(["mal"])["mal"].caught
    assert len(memory.state_dict()["nodes"]) == MAX_NODES


def test_threat_discarded_caught_names_do_not_displace_newcomers():
    memory = ChecksOfNodes(None, "checks")
    thrown = frozenset(f"n{k}" for k in range(MAX_NODES))
    memory.add(dict.fromkeys(thrown, 0), thrown, 5)
    memory.add({"honest": 9}, frozenset(), 5)
    assert memory.of(["honest"])["honest"].clean == 9
    assert len(memory.state_dict()["nodes"]) == MAX_NODES


def test_checkpoint_includes_the_members_state(tmp_path):
    store = NodeStore(tmp_path)
    check = SpotCheck(Says(), share=0.1, settled_after=5, store=store)
    check.verify(sent("a", 10, bad=range(10)))
    again = SpotCheck(Says(), share=0.1, settled_after=5, store=NodeStore(tmp_path))
    assert again.memory.of(["a"])["a"].caught
    config = {"verifier": {"spot_checks": [{"type": "recurrence"}], "share": 0.2}}
    guard = GuardConfig.model_validate(config).build()
    places = guard.state_dict()["memories"]
    assert {"verifier", "verifier.0"} <= places.keys()
    guard.load_state_dict(guard.state_dict())
    with pytest.raises(ValueError, match="SpotCheck: expected what state_dict"):
        check.load_state_dict({"format": 1, "nodes": [["a", -1, 0]]})


def test_checkpoint_keeps_what_passed_unchecked():
    batch = [replace(c, node=None) for c in sent("a", 40)]

    def drawn(check):
        said = check.verify(batch)
        return [i for i, v in enumerate(said) if v.members[0].verifier != NOT_CHECKED]

    first = SpotCheck(Says(), share=0.1, newcomers=0.1, key=KEY)
    before = [drawn(first) for _ in range(3)]
    again = SpotCheck(Says(), share=0.1, newcomers=0.1, key=KEY)
    again.load_state_dict(first.state_dict())
    assert drawn(again) == drawn(first) not in before
    again.load_state_dict({"format": 1, "nodes": []})  # from before they were counted
    assert drawn(again) not in before  # and nothing turns them back
    for calls in (-1, "3", 2.5, None):
        with pytest.raises(ValueError, match="SpotCheck: expected what state_dict"):
            again.load_state_dict({"format": 1, "nodes": [], "calls": calls})


def test_spot_check_from_yaml():
    config = GuardConfig.model_validate(
        {"verifier": {"spot_checks": [{"type": "arithmetic"}, {"type": "code"}], "share": 0.25}}
    )
    check = config.build().verifier
    assert isinstance(check, SpotCheck)
    assert (check.share, check.newcomers, check.member.name) == (0.25, 0.5, "all(arithmetic, code)")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"share": 0}, "share"), ({"share": 1.5}, "share"), ({"newcomers": 0}, "newcomers"),
        ({"settled_after": 0}, "settled_after"), ({"key": "short"}, "key"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_named(options, field):
    with pytest.raises(ValueError, match=f"{field}: expected"):
        SpotCheck(Says(), **options)
    with pytest.raises(ValueError, match="expected at least one"):
        SpotCheck()
