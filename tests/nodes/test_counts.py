"""Findings that count: forgiven once and not always, with the real arithmetic verifier."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from grpo_guard import (
    AllOf,
    AnswerWordsVerifier,
    ArithmeticVerifier,
    EvidenceLedger,
    Guard,
    StandingVerifier,
)
from grpo_guard.completion import Completion
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.nodes.counts import Counts
from grpo_guard.nodes.standing import State
from grpo_guard.nodes.store import NodeStore
from grpo_guard.verdict import Cause

REPORTED = dict.fromkeys(("taken_back", "wrong_textual", "wrong_inequality"), "report")
RIGHT = "2 + 2 = 4 cows. Then 4 + {n} = {m} cows.\n#### {m}"
TAKEN_BACK = "2 + 2 = 5. Sorry, 2 + 2 = 4 cows. Then 4 + {n} = {m} cows.\n#### {m}"
IN_WORDS = "Two cows and two cows make five cows. 4 + {n} = {m}.\n#### {m}"
UNEQUAL = "2 + 2 > 4. 2 + 2 = 4 cows. Then 4 + {n} = {m} cows.\n#### {m}"


def completion(node, round, i, form=RIGHT, **fields):
    n = round % 7 + i + 1
    return Completion(
        f"2 + 2 cows and {n} more?", form.format(n=n, m=n + 4), node=node, round=round,
        slot=i, reference=str(n + 4), **fields,
    )  # fmt: skip


def batch_of(round, shares, rng, form=TAKEN_BACK, each=16):
    """Each node's completions of a round; so large a share of them in the forgiven form."""
    return [
        completion(node, round, i, form if rng.random() < share else RIGHT)
        for node, share in shares.items()
        for i in range(each)
    ]


@pytest.fixture
def verifier(tmp_path):
    verifier = ArithmeticVerifier(store=NodeStore(tmp_path / "counts"))
    yield verifier
    verifier.counts().close()


@pytest.mark.parametrize("form", [TAKEN_BACK, IN_WORDS, UNEQUAL])
def test_threat_a_node_whose_every_answer_has_what_one_answer_may_have(verifier, form):
    rng = random.Random(0)
    shares = {"ann": 0.02, "bob": 0.02, "cid": 0.02, "mal": 0.5}
    honest = 0
    for round in range(12):
        batch = batch_of(round, shares, rng, form)
        verdicts = verifier.verify(batch)
        honest += sum(v.rejected for c, v in zip(batch, verdicts, strict=True) if c.node != "mal")
    own = [(c, v) for c, v in zip(batch, verdicts, strict=True) if c.node == "mal"]
    forgiven = [not c.text.startswith("2 + 2 = 4") for c, _ in own]
    assert [v.rejected for _, v in own] == forgiven
    assert sum(forgiven) > 3
    assert honest == 0
    finding = next(v for _, v in own if v.rejected).findings[0]
    assert finding.kind == "frequent_finding"
    assert "node 'mal'" in finding.message
    assert finding.char_span is not None


def test_threat_poison_of_the_first_batches_before_a_ledger_can_know(verifier):
    # What is learnt in a few rounds is not unlearnt where nobody asks for it again.
    batch = batch_of(0, {"ann": 0.02, "bob": 0.02, "cid": 0.02, "mal": 0.5}, random.Random(0))
    verdicts = verifier.verify(batch)
    for c, verdict in zip(batch, verdicts, strict=True):
        assert verdict.rejected == (c.node == "mal" and not c.text.startswith("2 + 2 = 4"))


def test_the_test_within_a_batch_keeps_its_level(tmp_path):
    rng, lost, having = random.Random(0), 0, 0
    verifier = ArithmeticVerifier(store=NodeStore(tmp_path))
    for round in range(100):
        batch = batch_of(round, dict.fromkeys(("ann", "bob", "cid", "dan"), 0.2), rng, each=6)
        verdicts = verifier.verify(batch)
        having += sum(not c.text.startswith("2 + 2 = 4") for c in batch)
        lost += len({c.node for c, v in zip(batch, verdicts, strict=True) if v.rejected})
    assert having > 400
    # 400 tests at 0.01, discrete and so below it.
    assert lost <= 10


def test_who_stops_is_forgiven_again(tmp_path):
    plain, counts = ArithmeticVerifier(), EvidenceLedger(tmp_path / "s.sqlite", half_life=5)

    def judged(batch):
        verdicts = plain.look(batch)
        found = [next(iter(v.findings), None) for v in verdicts]
        return Counts(counts, 0.01).judged(batch, verdicts, found)

    rng = random.Random(0)
    honest = dict.fromkeys(("ann", "bob", "cid"), 0.02)
    for round in range(8):
        judged(batch_of(round, {**honest, "dan": 0.9}, rng))
    assert counts.state("dan") is State.HARD
    for round in range(8, 40):
        judged(batch_of(round, {**honest, "dan": 0.0}, rng))
    assert judged([completion("dan", 41, 0, TAKEN_BACK)])[0].accepted


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_a_habit_that_all_have_is_nobodys(tmp_path, share):
    found = 0
    for swarm in range(5):
        verifier = ArithmeticVerifier(store=NodeStore(tmp_path / f"{swarm}"), batch_alpha=0)
        rng = random.Random(swarm)
        for round in range(25):
            batch = batch_of(round, dict.fromkeys(("ann", "bob", "cid", "dan"), share), rng, each=8)
            found += sum(verdict.rejected for verdict in verifier.verify(batch))
    assert found == 0


def test_its_rejections_are_no_evidence_for_the_guards_own_ledger(tmp_path, ledger):
    # Otherwise an honest model that corrects itself would be shut out for it.
    arithmetic = ArithmeticVerifier(store=NodeStore(tmp_path / "counts"))
    guard = Guard(AllOf(StandingVerifier(ledger), arithmetic), ledger=ledger)
    rng = random.Random(0)
    shares = {"ann": 0.0, "bob": 0.0, "cid": 0.0, "odd": 0.5}
    rejected = 0
    for round in range(20):
        batch = batch_of(round, shares, rng)
        rejected += sum(verdict.rejected for verdict in guard.review(batch).verdicts)
    assert rejected > 80
    assert arithmetic.counts().state("odd") is State.HARD
    assert ledger.state("odd") is State.CLEAR


def test_the_members_own_verdicts_stay_as_they_are(verifier):
    wrong = "2 + 2 = 5 cows. Then 4 + 3 = 7 cows.\n#### 7"
    batch = [
        Completion("Q", wrong, node="mal", reference="7"),
        completion("mal", 0, 0, TAKEN_BACK),
        completion(None, 0, 0, TAKEN_BACK),
    ]
    ours, plain = verifier.verify(batch), ArithmeticVerifier(severity=REPORTED).verify(batch)
    assert [(v.outcome, v.findings) for v in ours] == [(v.outcome, v.findings) for v in plain]
    assert verifier.name == "arithmetic"
    assert verifier.verify([]) == []


def test_a_ledger_that_cannot_be_read_is_not_the_senders_fault(verifier):
    path = verifier.counts().path
    verifier.counts().close()
    path.unlink()
    path.mkdir()
    plain, taken_back = verifier.verify(
        [completion("ann", 0, 0), completion("ann", 0, 1, TAKEN_BACK)]
    )
    assert plain.accepted
    assert taken_back.abstained
    assert taken_back.cause is Cause.FAULT


def test_batches_without_nodes_open_nothing(tmp_path):
    verifier = ArithmeticVerifier(store=NodeStore(tmp_path))
    own = ArithmeticVerifier()
    for rule in (verifier, own):
        assert rule.verify([completion(None, 0, i, TAKEN_BACK) for i in range(8)])[0].accepted
        assert rule.verify([]) == []
    assert not list(tmp_path.iterdir())
    assert own.store is None


def test_without_a_store_each_has_one_of_its_own_also_where_threads_begin_together():
    verifier, other = ArithmeticVerifier(), ArithmeticVerifier()
    batch = batch_of(0, {"ann": 0.0, "bob": 0.0, "cid": 0.0, "mal": 1.0}, random.Random(0))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: verifier.verify(batch), range(8)))
    for verdicts in answers:
        assert [v.rejected for v in verdicts] == [c.node == "mal" for c in batch]
    assert verifier.counts().path != other.counts().path


def test_several_rules_count_in_books_of_their_own_in_one_file(tmp_path):
    store = NodeStore(tmp_path)
    rules = [ArithmeticVerifier(store=store), AnswerWordsVerifier(store=store)]
    shares = {"ann": 0.0, "bob": 0.0, "cid": 0.0, "mal": 1.0}
    for round in range(8):
        for rule in rules:
            rule.verify(batch_of(round, shares, random.Random(round)))
    assert [rule.counts().state("mal") for rule in rules] == [State.HARD, State.CLEAR]
    assert {path.name for path in tmp_path.glob("*.sqlite")} == {"nodes.sqlite"}


def test_the_file_is_there_again(tmp_path):
    for round in range(8):
        shares = {"ann": 0.0, "bob": 0.0, "cid": 0.0, "mal": 1.0}
        batch = batch_of(round, shares, random.Random(round))
        ArithmeticVerifier(store=NodeStore(tmp_path)).verify(batch)
    again = ArithmeticVerifier(store=NodeStore(tmp_path))
    assert again.verify([completion("mal", 9, 0, TAKEN_BACK)])[0].rejected
    assert again.verify([completion("ann", 9, 0, TAKEN_BACK)])[0].accepted


def test_from_a_guards_file(tmp_path):
    path = tmp_path / "guard.yaml"

    def built(**leaf):
        tree = {"verifier": {"type": "arithmetic", **leaf}}
        path.write_text(yaml.safe_dump(tree))
        return GuardConfig.from_yaml(path).build().verifier

    shares = {"ann": 0.0, "bob": 0.0, "cid": 0.0, "mal": 1.0}
    batch = batch_of(0, shares, random.Random(0))
    assert sum(v.rejected for v in built().verify(batch)) == 16
    assert not any(v.rejected for v in built(severity={"taken_back": "report"}).verify(batch))
    said = built(batch_alpha=0, severity={"taken_back": "reject", "wrong_equation": "report"})
    assert [v.rejected for v in said.verify(batch)] == [c.node == "mal" for c in batch]
    with pytest.raises(ConfigError, match=r"severity: .* did you mean 'taken_back'"):
        built(severity={"takenback": "report"})
    with pytest.raises(ConfigError, match=r"severity.taken_back: expected one of .* 'cuont'; did"):
        built(severity={"taken_back": "cuont"})
    with pytest.raises(ConfigError, match="store: expected from Python alone"):
        built(store=str(tmp_path))
    memory = {"path": "sums.sqlite", "kinds": ["taken_back"]}
    with pytest.raises(ConfigError, match=r"verifier.frequent: expected severity: {KIND: count}"):
        built(frequent=memory)


def test_the_old_name_says_what_took_its_place():
    with pytest.raises(ImportError, match=r"FrequentFindings is gone: say severity={KIND: 'count'"):
        from grpo_guard import FrequentFindings  # noqa: F401


def test_a_peer_that_sends_much_makes_nobody_look_like_a_habit(verifier):
    # One that sends 120 clean texts made a single finding of another node "frequent" (p = 0.008).
    batch = [completion("large", 0, i, RIGHT) for i in range(120)]
    for node in ("ann", "bob"):
        batch += [completion(node, 0, i, TAKEN_BACK if i == 0 else RIGHT) for i in range(8)]
    batch += [completion("cid", 0, i, TAKEN_BACK if i < 2 else RIGHT) for i in range(8)]
    assert not any(verdict.rejected for verdict in verifier.verify(batch))
