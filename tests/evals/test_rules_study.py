"""`grpo-guard eval rules`: what each kind of finding catches, and what it costs."""

import importlib.util
import json

from typer.testing import CliRunner

from grpo_guard import ArithmeticVerifier, Completion
from grpo_guard.cli.main import app
from grpo_guard.evals.studies import rules
from grpo_guard.evals.studies.rules_corpora import Corpus, text_attacks

RIGHT, WRONG = "3 + 4 = 7 cows.\n#### 7", "{} + 2 = {} cows. Then 3 + 4 = 7 cows.\n#### 7"


def corpus(name, text, *, nodes=4, rounds=1):
    batches = [
        [
            Completion(f"How many in {number}.{p}?",
                       text.format(10 + 7 * p, 13 + 7 * p) if node == 0 else RIGHT,
                       node=f"n{node}", reference="7")
            for p in range(8) for node in range(nodes)
        ]
        for number in range(rounds)
    ]  # fmt: skip
    return Corpus(name, batches, lambda c: c.node == "n0")


def test_rejections_by_one_kind_alone_are_tallied():
    tally = rules.tallied([corpus("poison", WRONG), corpus("clean", RIGHT)])
    assert (tally.total, tally.rejected) == (16, 8)
    assert tally.corpora == {"poison": [8, 8], "clean": [0, 8]}
    assert tally.alone == tally.kinds
    assert set(tally.kinds.values()) == {8}
    assert tally.verifiers == {"arithmetic": 8}


def test_counted_kinds_are_attributed_when_they_reject():
    rule = ArithmeticVerifier(severity=dict.fromkeys(ArithmeticVerifier.KINDS, "count"))
    rejected = set()
    for batch in corpus("poison", WRONG, rounds=3).rounds:
        for verdict in rule.verify(batch):
            rejected |= rules.rejecting(rule, verdict)
    assert rejected
    assert {name for name, _ in rejected} == {"arithmetic"}
    assert {kind for _, kind in rejected} <= set(ArithmeticVerifier.KINDS)


def test_table_and_file_are_written(monkeypatch, tmp_path):
    monkeypatch.setattr(rules, "honest_corpora", lambda split: [corpus("clean", RIGHT)])
    monkeypatch.setattr(rules, "poison_corpora", lambda split: [corpus("poison", WRONG)])
    out, table = tmp_path / "rules.json", tmp_path / "rules.md"
    said = ["eval", "rules", "--split", "held", "-o", str(out), "--table", str(table)]
    result = CliRunner().invoke(app, said)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["kind"], written["split"]) == ("rules", "held")
    assert written["preset"]["poison"]["all"]["hits"] == 8
    assert written["preset"]["honest"]["all"]["hits"] == 0
    rows = [line for line in table.read_text().splitlines() if line.startswith("| arithmetic")]
    assert any("| 8 (100.00%) | 8 (100.00%) | 0 (0.00%) | 0 (0.00%) |" in row for row in rows)
    assert "rejects 8 of 8 poisoned completions and 0 of 8 honest right ones" in table.read_text()


def test_command_without_a_checkout_says_so(monkeypatch):
    real = importlib.util.find_spec

    def without(name, *rest):
        return None if name.endswith("evals.studies") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    result = CliRunner().invoke(app, ["eval", "rules"])
    assert result.exit_code == 1
    assert "needs a checkout" in result.output


def test_each_attack_is_played_once():
    names = [attack.name for attack in text_attacks()]
    assert len(names) == len(set(names)) > 10
