"""Counted findings: tolerated once but not always, with the real arithmetic verifier."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from grpo_guard import AllOf, ArithmeticVerifier, Guard, ScreensVerifier
from grpo_guard.cli.main import app
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, abstain
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.saved import StateError
from grpo_guard.nodes.standing import State
from grpo_guard.nodes.store import NodeStore

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
    """Each node's completions per round, with the finding in the given share."""
    return [
        completion(node, round, i, form if rng.random() < share else RIGHT)
        for node, share in shares.items()
        for i in range(each)
    ]


ALL_OF_MAL = {"ann": 0.0, "bob": 0.0, "cid": 0.0, "mal": 1.0}


def after(verifier, rounds, shares=ALL_OF_MAL, form=TAKEN_BACK):
    """Return the verifier after the given number of rounds."""
    for round in range(rounds):
        verifier.verify(batch_of(round, shares, random.Random(round), form))
    return verifier


@pytest.fixture
def verifier(tmp_path):
    return ArithmeticVerifier(store=NodeStore(tmp_path / "counts"))


@pytest.mark.parametrize("form", [TAKEN_BACK, IN_WORDS, UNEQUAL])
def test_threat_node_with_a_tolerated_finding_in_every_answer(verifier, form):
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


def test_nodes_with_different_prompts_are_not_compared(verifier):
    """A case found earlier: among 128 honest answers to own prompts, one node lost all its wrong
    sums.
    """
    for round in range(20):
        batch = [
            replace(c, prompt=f"For {c.node}: {c.prompt}")
            for c in batch_of(round, ALL_OF_MAL, random.Random(round))
        ]
        assert not any(v.rejected for v in verifier.verify(batch))
    assert verifier.counts.e_processes.log_e_values() == {}


@pytest.mark.parametrize("nodes", [["mal"], ["mal", "ann"]])
def test_one_or_two_nodes_are_not_compared(verifier, nodes):
    after(verifier, 20, {node: float(node == "mal") for node in nodes})
    assert not any(v.rejected for v in verifier.verify(batch_of(20, {"mal": 1.0}, random.Random())))


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_habit_of_all_nodes_convicts_none(verifier, share):
    rng = random.Random(0)
    for round in range(25):
        batch = batch_of(round, dict.fromkeys(("ann", "bob", "cid", "dan"), share), rng, each=8)
        assert not any(verdict.rejected for verdict in verifier.verify(batch))


def test_threat_convicted_node_is_rejected_on_its_own_prompts_too(verifier):
    after(verifier, 4)
    alone = [completion("mal", 40, 50, form) for form in (TAKEN_BACK, RIGHT)]
    assert [v.rejected for v in verifier.verify(alone)] == [True, False]


def test_batch_judged_twice_counts_once(verifier):
    batch = batch_of(0, ALL_OF_MAL, random.Random(0))
    verifier.verify(batch)
    once = verifier.counts.e_processes.log_e_values()
    for _ in range(20):
        assert not any(v.rejected for v in verifier.verify(list(reversed(batch))))
    assert verifier.counts.e_processes.log_e_values() == once


def test_rounds_without_a_finding_leave_no_trace(verifier):
    """Otherwise an attacker who begins late would be judged against all earlier clean rounds."""
    after(verifier, 10, dict.fromkeys(ALL_OF_MAL, 0.0))
    assert verifier.counts.e_processes.log_e_values() == {}


def test_abstentions_are_no_evidence(verifier):
    class Unreadable(ArithmeticVerifier):
        def look(self, batch):
            return [
                abstain(self.name, Cause.TIMEOUT) if c.node != "mal" else verdict
                for c, verdict in zip(batch, super().look(batch), strict=True)
            ]

    rule = after(Unreadable(), 5)
    assert rule.counts.e_processes.log_e_values() == {}


@pytest.mark.parametrize("node", ["n" * 10_000, "\udc80", "\x00\x1b[31m", "a\udced"])
def test_threat_any_name_is_bounded_and_distinct(tmp_path, node):
    shares = {"ann": 0.0, "bob": 0.0, "cid": 0.0, node: 1.0, node + "2": 0.0}
    verifier = after(ArithmeticVerifier(store=NodeStore(tmp_path)), 4, shares)
    again = ArithmeticVerifier(store=NodeStore(tmp_path))
    names = [node, node + "2", "ann"]
    batch = [completion(name, 9, 0, TAKEN_BACK) for name in names]
    assert [v.rejected for v in again.verify(batch)] == [True, False, False]
    assert len(json.dumps(verifier.state_dict())) < 3_000


def test_counted_rejections_are_no_evidence_for_the_ledger(tmp_path, ledger):
    # Otherwise an honest model that corrects itself would be excluded for it.
    arithmetic = ArithmeticVerifier(store=NodeStore(tmp_path / "counts"))
    guard = Guard(AllOf(ExclusionVerifier(ledger), arithmetic), ledger=ledger)
    rng = random.Random(0)
    shares = {"ann": 0.0, "bob": 0.0, "cid": 0.0, "odd": 0.5}
    rejected = 0
    for round in range(20):
        batch = batch_of(round, shares, rng)
        rejected += sum(verdict.rejected for verdict in guard.review(batch).verdicts)
    assert rejected > 80
    assert arithmetic.counts.convicted() == {"odd"}
    assert ledger.state("odd") is State.CLEAR


def test_verdicts_of_members_are_unchanged(verifier):
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


def test_unreadable_store_abstains(tmp_path, caplog):
    verifier = after(ArithmeticVerifier(store=NodeStore(tmp_path)), 1)
    path = tmp_path / "nodes.sqlite"
    path.unlink()
    path.mkdir()
    for round in range(1, 4):  # it continues with the state of this process
        batch = batch_of(round, ALL_OF_MAL, random.Random(round))
        verdicts = verifier.verify(batch)
    assert [v.rejected for v in verdicts] == [c.node == "mal" for c in batch]
    assert "is neither read nor written" in caplog.text


def test_batches_without_nodes_open_nothing(tmp_path):
    for rule in (ArithmeticVerifier(store=NodeStore(tmp_path)), ArithmeticVerifier()):
        assert rule.verify([completion(None, 0, i, TAKEN_BACK) for i in range(8)])[0].accepted
        assert rule.verify([]) == []
    assert not list(tmp_path.iterdir())


def test_verifiers_without_a_store_keep_their_own_counts_across_threads():
    verifier, other = ArithmeticVerifier(), ArithmeticVerifier()
    batches = [batch_of(round, ALL_OF_MAL, random.Random(round)) for round in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(verifier.verify, batches))
    assert verifier.counts.convicted() == {"mal"}
    assert other.counts.convicted() == frozenset()


def test_several_rules_count_separately_in_one_file(tmp_path):
    store = NodeStore(tmp_path)
    rules = [ArithmeticVerifier(store=store), AnswerWordsVerifier(store=store)]
    for rule in rules:
        after(rule, 8)
    assert [rule.counts.convicted() for rule in rules] == [{"mal"}, frozenset()]
    assert {path.name for path in tmp_path.glob("*.sqlite")} == {"nodes.sqlite"}


def test_two_processes_share_counts_that_survive_a_restart(tmp_path):
    for round in range(4):
        after(ArithmeticVerifier(store=NodeStore(tmp_path)), round + 1)
    again = ArithmeticVerifier(store=NodeStore(tmp_path))
    assert again.verify([completion("mal", 9, 0, TAKEN_BACK)])[0].rejected
    assert again.verify([completion("ann", 9, 0, TAKEN_BACK)])[0].accepted


def test_checkpoint_includes_the_counts():
    state = json.loads(json.dumps(after(ArithmeticVerifier(), 4).state_dict()))
    fresh = ArithmeticVerifier()
    fresh.load_state_dict(state)
    assert fresh.counts.convicted() == {"mal"}
    fresh.load_state_dict({"counts": None})
    assert fresh.counts.convicted() == frozenset()
    for broken in ({"counts": {"format": 1, "tables": {}}}, {"counts": 7}):
        with pytest.raises(StateError, match="expected what state_dict"):
            fresh.load_state_dict(broken)
    with pytest.raises(ValueError, match=r"arithmetic: expected what .* returned, got list"):
        fresh.load_state_dict([])
    with pytest.raises(ValueError, match=r"screens: expected what .* returned, got counts"):
        ScreensVerifier().load_state_dict(state)


def test_counts_are_shown_and_a_node_can_be_released(tmp_path):
    after(verifier := ArithmeticVerifier(store=NodeStore(tmp_path)), 4)

    def ledger(command, *arguments, book="arithmetic"):
        told = ["ledger", command, str(tmp_path), *arguments, "--book", book]
        return CliRunner().invoke(app, told)

    shown = ledger("show")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0].startswith("'mal'  e = 10^")
    (row,) = json.loads(ledger("show", "--node", "mal", "--json").stdout)["nodes"]
    assert row["log_e"] > 9
    assert ledger("release", "mal").exit_code == 0
    assert verifier.verify([completion("mal", 9, 0, TAKEN_BACK)])[0].accepted
    for nothing in (ledger("release", "zoe"), ledger("show", book="answer_words")):
        assert nothing.exit_code == 2
        assert "expected" in nothing.stderr


def test_counts_configured_in_a_guard_file(tmp_path):
    path = tmp_path / "guard.yaml"

    def built(**leaf):
        tree = {"verifier": {"type": "arithmetic", **leaf}}
        path.write_text(yaml.safe_dump(tree))
        return GuardConfig.from_yaml(path).build().verifier

    batch = batch_of(4, ALL_OF_MAL, random.Random(0))
    assert sum(v.rejected for v in after(built(), 4).verify(batch)) == 16
    reported = after(built(severity={"taken_back": "report"}), 4)
    assert not any(v.rejected for v in reported.verify(batch))
    tolerant = after(built(count_odds=100, count_alpha=1e-6), 4)
    assert not any(v.rejected for v in tolerant.verify(batch))
    with pytest.raises(ConfigError, match=r"severity: .* did you mean 'taken_back'"):
        built(severity={"takenback": "report"})
    with pytest.raises(ConfigError, match=r"severity.taken_back: expected one of .* 'cuont'; did"):
        built(severity={"taken_back": "cuont"})
    with pytest.raises(ConfigError, match="store: expected only in Python"):
        built(store=str(tmp_path))
    with pytest.raises(ConfigError, match=r"batch_alpha: expected count_alpha: ALPHA in its"):
        built(batch_alpha=0.01)
    memory = {"path": "sums.sqlite", "kinds": ["taken_back"]}
    with pytest.raises(ConfigError, match=r"verifier.frequent: expected severity: {KIND: count}"):
        built(frequent=memory)


def test_threat_busy_peer_does_not_turn_a_finding_into_a_habit(verifier):
    for round in range(20):
        batch = [completion("large", round, i % 8, RIGHT) for i in range(120)]
        for node in ("ann", "bob", "cid"):
            batch += [completion(node, round, i, TAKEN_BACK if i < 2 else RIGHT) for i in range(8)]
        assert not any(verdict.rejected for verdict in verifier.verify(batch))
