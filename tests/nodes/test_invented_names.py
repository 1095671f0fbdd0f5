"""Inventing names gains nothing: it changes no verdict and takes no more memory than its work."""

import random

import pytest

from grpo_guard import Completion
from grpo_guard.content.recurrence.swarm import lockstep
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.core.completion import MAX_NAME
from grpo_guard.core.verdict import accept, reject
from grpo_guard.nodes.bets import Tally
from grpo_guard.nodes.evidence import MAX_ACCOUNTS, Comparison
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.standing import State
from tests.nodes.plain_evidence import PlainComparison
from tests.nodes.swarm_ledger import ODD


def history(seed, rounds, steady, invented):
    """Rounds of nodes that come and go, among names that are used once or return."""
    chance = random.Random(seed)
    share = {f"n{i}": chance.choice((1, 1, 0.5, 0.3)) for i in range(steady)}
    rate = {name: chance.choice((0, 0.01, 0.1, 0.5)) for name in share}
    names = 0
    for _ in range(rounds):
        here = {name for name, often in share.items() if chance.random() < often}
        here |= {f"i{names + k}" for k in range(invented)}
        names += invented
        here |= {f"i{chance.randrange(names)}" for _ in range(2) if names}
        tallies = {}
        for name in sorted(here):
            judged = chance.choice((0, 1, 4, 7.5))
            bad = sum(chance.random() < rate.get(name, 0.2) for _ in range(int(judged)))
            tallies[name] = Tally(judged, bad, min(bad, 3))
        yield tallies


@pytest.mark.parametrize(
    ("window", "start", "rounds", "steady", "invented"),
    [(8, 0, 30, 5, 3), (8, 400, 24, 36, 0), (24, 4, 40, 6, 3), (256, 0, 16, 3, 8)],
)
def test_active_nodes_are_judged_as_if_all_names_were_compared(
    window, start, rounds, steady, invented
):
    one, plain = Comparison(window=window, salt=b"s"), PlainComparison(window=window, salt=b"s")
    for comparison in (one, plain):
        comparison.begin_at(start)
    looks = random.Random(1)
    for tallies in history(window, rounds, steady, invented):
        one.add(tallies)
        plain.add(tallies)
        if looks.random() < 0.3:
            found, expected = one.evidence(), plain.evidence()
            assert found.keys() == {name for name, t in tallies.items() if t.judged}
            for name, evidence in found.items():
                wanted = expected[name]
                assert evidence.log_e == pytest.approx(wanted.log_e, rel=1e-12, abs=1e-12)
                assert (evidence.peers, evidence.others) == (wanted.peers, wanted.others)
                assert evidence.rose == wanted.rose


def batch(t, away=()):
    """One node that poisons a third of its work until round 12, three honest ones, and four new
    names.
    """
    for name in ("ann", "bob", "cid", "mal"):
        for i in range(12):
            if name not in away:
                bad = name == "mal" and i % 3 == 0 and t < 12
                yield Completion(f"{t} {i}", f"{name}", node=name, round=t), bad
    for k in range(4):
        yield Completion(f"{t} 0", "x", node=f"new {t} {k}", round=t), k % 2 == 0


def play(ledger, rounds, away=lambda t: ()):
    states = []
    for t in range(rounds):
        completions, bad = zip(*batch(t, away(t)), strict=True)
        verdicts = [reject("says", findings=(ODD,)) if b else accept("says") for b in bad]
        ledger.record(completions, verdicts)
        states.append({s.node: (s.state, s.since) for s in ledger.standings()})
    return states


@pytest.mark.slow
def test_standings_match_in_every_round(tmp_path, monkeypatch):
    # Excluded, absent, released while absent, back again.
    def away(t):
        return ("mal",) if 12 <= t < 36 and t % 10 else ()

    here = play(EvidenceLedger(tmp_path / "a.sqlite", half_life=4), 40, away)
    monkeypatch.setattr("grpo_guard.nodes.judging.Comparison", PlainComparison)
    assert here == play(EvidenceLedger(tmp_path / "b.sqlite", half_life=4), 40, away)
    seen = [states.get("mal", (State.CLEAR, 0))[0] for states in here]
    assert State.HARD in seen
    assert seen[-1] is State.CLEAR


def test_round_rewrites_only_its_own_names(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    play(ledger, 30)
    connection = ledger._open(0.0)
    connection.execute("UPDATE marks SET log_e = -77 WHERE state = 'clear'")
    written = connection.total_changes
    completions, bad = zip(*batch(30), strict=True)
    ledger.record(completions, [reject("says") if b else accept("says") for b in bad])
    untouched = [s.node for s in ledger.standings() if s.log_e == -77]
    assert sum(node.startswith("new") for node in untouched) >= 29 * 4 - 4
    assert connection.total_changes - written < 350  # the same number whatever the number of names


def test_name_used_once_takes_little_memory():
    comparison = Comparison()
    for t in range(64):
        names = (*"abcd", *(f"{t} {k}" for k in range(40)))
        comparison.add({n: Tally(1, int(len(n) > 1), int(len(n) > 1)) for n in names})
        comparison.evidence()
        assert len(comparison._accounts) <= MAX_ACCOUNTS
        kept = sum(account.ahead.nbytes for account in comparison._accounts.values())
        assert kept < 12_000_000  # 1.1 GB when each first appearance had a row


def test_threat_long_names_are_not_stored_in_full():
    names = ["n" * 10**6, "n" * 10**6 + "x", "\ud800" * 10**6]
    batch = [Completion(f"p {i}", f"t {i}", node=n) for n in names for i in range(3)]
    kept = {c.node for c in batch}
    assert len(kept) == 3
    assert max(map(len, kept)) <= MAX_NAME
    assert Completion("p", "t", node=names[0]).node == batch[0].node
    assert Completion("p", "t", node="n" * MAX_NAME).node == "n" * MAX_NAME
    verifier = RecurrenceVerifier()
    verifier.verify(batch)
    assert len(str(verifier.state_dict())) < 100_000


def test_recurrence_handles_a_batch_of_many_names_in_linear_time():
    queues = {"a": list(range(9)), **{f"n{k}": [100 + k] for k in range(3)}}
    assert list(lockstep(queues)) == [[0, 1, 2, 3, 100, 101, 102], [4, 5, 6, 7], [8]]
    assert list(lockstep({})) == []


@pytest.mark.parametrize(("claimed", "lie"), [(True, 0), (True, None), (False, 0), (False, None)])
def test_invented_names_do_not_keep_a_round_open(tmp_path, claimed, lie):
    """An attack: more names than nodes, with a completion each, all claiming round 0."""
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    for t in range(60):
        said = t if claimed else None
        batch = [Completion(f"{t} {i}", "x", node=n, round=said) for n in "abcd" for i in range(8)]
        batch += [Completion(f"{t} 0", "x", node=f"{t} {k}", round=lie) for k in range(12)]
        ledger.record(batch, [reject("says") if c.node == "d" else accept("says") for c in batch])
    states = {node: ledger.state(node) for node in "abcd"}
    assert states == {"a": State.CLEAR, "b": State.CLEAR, "c": State.CLEAR, "d": State.HARD}
