"""What senders can do to a ledger, and files that are not a ledger."""

import pickle
import random
import sqlite3
from dataclasses import replace

import pytest

from grpo_guard import AllOf, Completion, Guard
from grpo_guard.core.completion import CompletionError
from grpo_guard.core.verdict import Cause, Finding, Outcome, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.intake import STANDING_KIND, intake, name_bytes, outcome_of_work, printable
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.report import read
from grpo_guard.nodes.rounds import MAX_NODES, MAX_PHRASES, MAX_REASONS
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.standing import State
from tests.nodes.swarm_ledger import Says, one_in, play, played

HOSTILE = ["", "\x00", "a\x1b[31m", "\ud800", "\u202etxt", "n" * 10**6, "'; DROP TABLE nodes; --"]


def test_hostile_names_and_texts(ledger):
    batch = [Completion(x, x, node=x, round=2**63 - 1, group=x, slot=-(2**63)) for x in HOSTILE]
    kinds = [reject("says", findings=(Finding("recurring_" + x, x, (0, 10**9)),)) for x in HOSTILE]
    ledger.record(batch, kinds)
    assert ledger.degraded is None
    assert len(ledger.standings()) == len(HOSTILE)
    for standing in ledger.standings():
        assert standing.node.isprintable()
        assert len(standing.node) < 1000
        assert all(kind.isprintable() for kind, _ in standing.reasons)
    assert ledger.state("\ud800") is State.CLEAR
    assert name_bytes("n" * 10**6) != name_bytes("n" * (10**6 + 1))


def test_no_node_can_take_anothers_cut_name(ledger):
    victim = "-----BEGIN PUBLIC KEY----- " + "MIIBIjANBgkqhkiG9w0B" * 12
    cut = name_bytes(victim).decode()
    assert name_bytes(cut) != name_bytes(victim)
    assert name_bytes(name_bytes(cut).decode()) != name_bytes(cut)
    batch = [Completion("p", "t", node=victim), Completion("p", "t", node=cut)]
    ledger.record(batch, [accept("says"), reject("says")])
    assert [standing.rejected for standing in ledger.standings()] == [1, 0]
    # The report shows the victim's name cut: whoever copies it from there means the victim.
    for shown in (cut, victim):
        (found,) = read(ledger.path, shown).nodes
        assert (found.node, found.rejected) == (cut, 0)


def test_prompt_with_images_is_one_prompt():
    """Each completion of a group may hold an image object of its own."""

    class Picture:
        size = (2, 2)

        def tobytes(self):
            return b"four"

    def marks(prompt):
        return intake([Completion(prompt(), "t", node="a", slot=i) for i in range(2)],
                      [accept("says")] * 2).entries  # fmt: skip

    def pictured():
        part = {"type": "image", "image": Picture()}
        return [{"role": "user", "content": [part, {"type": "text", "text": "How many?"}]}]

    assert len({entry.prompt for entry in marks(pictured)}) == 1


def test_ledger_does_not_grow_without_bound(ledger):
    ledger.max_nodes = 50
    for t in range(30):
        text = f"phrase number {t}"
        findings = tuple(Finding(f"recurring_{t}_{k}", text, (k, 20)) for k in range(20))
        names = ["busy", *(f"name {t} {k}" for k in range(20))]
        batch = [Completion("p", text, node=n, round=t) for n in names]
        ledger.record(batch, [reject("says", findings=findings)] * len(batch))
    connection = sqlite3.connect(ledger.path)
    size = {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("nodes", "phrases", "reasons", "cells", "seen", "clock")
    }
    assert size["nodes"] == 50
    assert size["phrases"] <= 50 * MAX_PHRASES
    assert size["reasons"] <= 50 * MAX_REASONS
    assert size["seen"] <= 8 * 21
    assert size["clock"] <= 8
    assert MAX_NODES == 10_000


def test_old_rounds_are_forgotten(ledger):
    play(ledger, 300, every=0, prompts=1, each=1)
    connection = sqlite3.connect(ledger.path)
    (rounds,) = connection.execute("SELECT count(DISTINCT clock) FROM rounds").fetchone()
    assert rounds <= 265


def test_another_process_continues_with_the_same_standings(tmp_path):
    path = tmp_path / "run.sqlite"
    once, twice = EvidenceLedger(path), tmp_path / "twice.sqlite"
    play(once, 40)
    for t in range(0, 40, 10):
        chance = random.Random(0)
        part = EvidenceLedger(twice)
        for u in range(40):
            bad = one_in(12, chance=chance)
            if t <= u < t + 10:
                part.record(*played(u, bad))
        part.close()
    assert EvidenceLedger(twice).standings() == once.standings()


def test_ledger_can_be_pickled(ledger):
    play(ledger, 3)
    copy = pickle.loads(pickle.dumps(Guard(Says(), ledger=ledger))).ledger
    assert copy.standings() == ledger.standings()


def test_one_verdict_per_completion(ledger):
    with pytest.raises(ValueError, match="expected 1"):
        ledger.record([Completion("p", "x")], [])
    ledger.record([], [])


@pytest.mark.parametrize(
    "arguments",
    [{"alpha": 0}, {"alpha": 2}, {"ratio": 0}, {"offset": 0}, {"hostile": 1}, {"half_life": 0},
     {"half_life": float("nan")}],
)  # fmt: skip
def test_arguments_are_checked(tmp_path, arguments):
    with pytest.raises(ValueError, match="expected"):
        EvidenceLedger(tmp_path / "run.sqlite", **arguments)


def test_file_that_is_not_a_ledger_is_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("x" * 5000)
    import sqlite3

    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    for path in (text, other, tmp_path, tmp_path / "no" / "folder.sqlite"):
        with pytest.raises(LedgerError, match="expected"):
            EvidenceLedger(path)
    assert text.read_text() == "x" * 5000


def test_outcomes_that_are_evidence_about_a_node():
    out = reject("standing", findings=(Finding(STANDING_KIND, "m"),))
    yes, no, none = accept("a"), reject("b"), abstain("c", Cause.TIMEOUT)

    def together(*members):
        class Fixed(CompletionVerifier):
            def __init__(self, verdict):
                self.name, self.verdict = verdict.verifier, verdict

            def verify(self, batch):
                return [self.verdict] * len(batch)

        return AllOf(*map(Fixed, members)).verify([Completion("p", "x")])[0]

    assert outcome_of_work(out) is None
    assert outcome_of_work(together(out, yes)) is Outcome.ACCEPT
    assert outcome_of_work(together(out, yes, no)) is Outcome.REJECT
    assert outcome_of_work(together(out, yes, none)) is Outcome.ABSTAIN
    assert outcome_of_work(together(yes, out)) is None
    assert outcome_of_work(together(accept("standing"), no)) is Outcome.REJECT
    assert outcome_of_work(together(yes, no)) is Outcome.REJECT
    # A recurring phrase costs a node the completions that contain it, not its standing.
    phrase = reject("recurrence", findings=(Finding("recurring_phrase", "m"),))
    assert outcome_of_work(phrase) is Outcome.ACCEPT
    assert outcome_of_work(together(yes, phrase)) is Outcome.ACCEPT
    assert outcome_of_work(together(phrase, no)) is Outcome.REJECT
    assert outcome_of_work(together(phrase, reject("reader"))) is Outcome.REJECT


def test_names_of_senders_are_printable():
    assert printable(b"a\x1b[2J\xff") == "a\\x1b[2J\\xff"
    assert printable("\u202e".encode()) == "\\u202e"


def test_round_of_a_batch_is_its_majority():
    claims = [("a", 5), ("b", 5), ("c", -9), ("c", -9), ("c", -9)]
    batch = [Completion("p", "x", node=n, round=r) for n, r in claims]
    assert intake(batch, [accept("says")] * 5).round == 5
    assert intake(batch, [accept("says")] * 5, round=7).round == 7


def test_threat_single_node_claims_a_round(ledger):
    # Always the same round: if its claim were enough, all batches would be taken for one.
    for t in range(40):
        batch, verdicts = played(t, one_in(1))
        batch = [
            replace(c, round=0 if c.node == "mal" else None, prompt=f"{t} {c.prompt}")
            for c in batch
        ]
        ledger.record(batch, verdicts)
    assert ledger.state("mal") is State.HARD
    assert ledger.state("ann") is State.CLEAR


def test_oversized_group_or_prompt_is_malformed():
    with pytest.raises(CompletionError, match="64 bits"):
        Completion("q", "4", group=10**5000)
    endless = []
    endless.append(endless)
    for content in (10**5000, endless):
        with pytest.raises(CompletionError, match="prompt"):
            Completion([{"role": "user", "content": content}], "4", node="mal", round=0)
