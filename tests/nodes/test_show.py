"""``grpo-guard ledger show``."""

import json
import random
import re

import pytest
from typer.testing import CliRunner

from grpo_guard import Completion, presets
from grpo_guard.cli.main import app
from grpo_guard.core.verdict import Finding, accept, reject
from grpo_guard.nodes.e_process_memory import EProcessMemory
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.store import NodeStore
from tests.nodes.swarm_ledger import one_in, played


def show(*arguments):
    return CliRunner().invoke(app, ["ledger", "show", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def path(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite", half_life=20)
    chance = random.Random(0)
    for t in range(20):
        ledger.record(*played(t, one_in(6, chance=chance)))
    finding = Finding("recurring_phrase", "recurs", char_span=(0, 8))
    names = ("mal", "\x1b[31m[bold]x[/bold]")
    batch = [Completion("p", "Hail hail", node=n, round=20) for n in names]
    ledger.record(batch, [reject("r", findings=(finding,))] * 2)
    return ledger.path  # left open, like a run in progress


def test_table_for_people(path):
    shown = show(path)
    assert shown.exit_code == 0
    first = next(line for line in shown.stdout.splitlines() if "mal" in line)
    assert "hard since round" in first
    assert "10^" in first
    assert "not enough evidence yet" in shown.stdout
    assert "clear" not in shown.stdout
    assert "mal was rejected for: odd" in shown.stdout
    assert "level  How far e has come" in shown.stdout
    assert "\x1b[31m" not in shown.stdout
    assert "\\x1b[31m[bold]x" in shown.stdout.replace("\n", "")
    assert "shared phrase (up to 1 times a node): 'Hail hai'" in shown.stdout
    assert "21 rounds, 19 judged" in shown.stdout


def test_words_and_numbers_do_not_break_at_80_columns(tmp_path):
    ledger = EvidenceLedger(tmp_path / "run.sqlite", half_life=20)
    chance = random.Random(0)
    for t in range(20):
        ledger.record(*played(t, one_in(6, chance=chance)))
    ledger.record_slots({"ann": 1000, "mal": 1000}, {"mal": 999}, round=21)
    shown = CliRunner().invoke(app, ["ledger", "show", str(ledger.path)], env={"COLUMNS": "80"})
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    words = set(shown.stdout.split())
    assert {"node", "state", "rejected", "others", "evidence", "enough", "slots", "hard"} <= words
    numbers = [line.split()[-1] for line in lines if "10^" in line]
    assert numbers
    assert all(float(number) >= 0 for number in numbers)


def test_json_for_programs(path):
    shown = json.loads(show(path, "--json").stdout)
    assert shown["rounds"] == 21
    worst = shown["nodes"][0]
    assert (worst["node"], worst["state"]) == ("mal", "hard")
    assert worst["rate"] == worst["rejected"] / worst["judged"]
    assert worst["reasons"][0]["kind"] == "odd"
    assert shown["shared_phrases"][0]["count"] == 1
    assert show("--json", path, "--node", "ann").exit_code == 0


def test_show_one_node(path):
    shown = json.loads(show(path, "--node", "ann", "--json").stdout)
    assert [n["node"] for n in shown["nodes"]] == ["ann"]
    assert shown["shared_phrases"] == []
    unknown = show(path, "--node", "who")
    assert unknown.exit_code == 2
    assert "expected a node of the ledger" in unknown.output


def test_invalid_ledger_exits_2(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("x" * 5000)
    (tmp_path / "empty").touch()
    for path in (text, tmp_path / "none.sqlite", tmp_path, tmp_path / "empty"):
        shown = show(path)
        assert shown.exit_code == 2
        assert str(path) in shown.output
        assert "expected" in shown.output
    assert not (tmp_path / "none.sqlite").exists()


def test_empty_ledger(tmp_path):
    EvidenceLedger(tmp_path / "run.sqlite").close()
    assert show(tmp_path / "run.sqlite").exit_code == 0


def test_a_node_is_one_line_at_80_columns(path):
    env = {"COLUMNS": "80"}
    ledger = EvidenceLedger(path.parent / "one.sqlite")
    for t in range(20):
        ledger.record(*played(t, {("mal", 1), ("mal", 9)}))
    ledger.record([Completion("p", "x")], [accept("says")])
    lines = CliRunner().invoke(app, ["ledger", "show", str(ledger.path)], env=env).stdout
    (first,) = [line for line in lines.splitlines() if line.startswith("mal  ")]
    assert "hard since round" in first
    assert "40 of 480, 8.33%" in first
    assert max(map(len, lines.splitlines())) <= 80
    assert "\n1 completion without a node\n" in lines


def test_released_node_is_called_so_until_it_is_judged_again(path):
    release = CliRunner().invoke(app, ["ledger", "release", str(path), "mal"])
    assert release.exit_code == 0
    shown = json.loads(show(path, "--node", "mal", "--json").stdout)["nodes"][0]
    assert shown["released"] is True
    assert re.search(r"mal +released", show(path, "--node", "mal").stdout)
    ledger = EvidenceLedger(path)
    for t in range(21, 24):
        ledger.record(*played(t))
    assert json.loads(show(path, "--json").stdout)["nodes"][0]["released"] is False


def test_a_misspelt_node_is_answered_with_the_one_that_was_meant(path):
    for command in (["release", str(path), "mall"], ["show", str(path), "--node", "mall"]):
        said = CliRunner().invoke(app, ["ledger", *command])
        assert said.exit_code == 2
        assert "did you mean 'mal'?" in said.output
    said = CliRunner().invoke(app, ["ledger", "release", str(path), "\x1b[31m[bold]x[/bald]"])
    assert "did you mean '\\x1b[31m[bold]x[/bold]'" in said.output


def rejected_phrase(folder, turns):
    """Three honest nodes, and one whose every answer holds a slogan; return the last verdicts."""
    guard = presets.different_weights(state=folder)
    for turn in turns:
        rows = [
            Completion(f"What is {i} + {turn}?", text, node=node, round=turn)
            for i in range(8)
            for node, text in (
                ("ann", f"{i} + {turn} = {i + turn}"),
                ("bob", f"The sum of {i} and {turn} is {i + turn}." if i % 2 else f"{i + turn}"),
                ("cid", f"Adding: {i + turn}" if i % 2 else f"It comes to {i + turn}."),
                (LONG, f"{i + turn}. All hail to the thief."),
            )
        ]
        verdicts = guard.review(rows).verdicts
    return guard, [v.rejected for v, row in zip(verdicts, rows, strict=True) if row.node == LONG]


LONG = "mal\x1b[2J" + "y" * 300


def test_phrases_of_recurrence_are_shown_and_released(tmp_path):
    folder = tmp_path / "state"
    guard, rejected = rejected_phrase(folder, range(4))
    assert all(rejected)
    (line,) = [x for x in show(folder).stdout.splitlines() if "completions are rejected for" in x]
    assert line.startswith("mal\\x1b[2Jyyy")
    assert "all hail to the thief" in line
    assert "in 8 of 8 prompts" in line
    found = json.loads(show(folder, "--json").stdout)["recurring"]
    (name,) = found
    assert found[name][0]["hits"] == 8
    result = CliRunner().invoke(app, ["ledger", "release", str(folder), name])
    assert result.exit_code == 0
    assert "if it goes on repeating 'all hail" in result.stdout
    assert json.loads(show(folder, "--json").stdout)["recurring"] == {}
    # A running guard follows: the node's honest work counts as anybody's.
    (verdict,) = guard.review([Completion("What is 1 + 99?", "100", node=LONG, round=9)]).verdicts
    assert not verdict.rejected
    (verdict,) = guard.review(
        [Completion("And 2 + 99?", "101. All hail to the thief.", node=LONG, round=9)]
    ).verdicts
    assert not verdict.rejected, "one prompt is no habit"
    _, rejected = rejected_phrase(folder, range(10, 12))
    assert all(rejected), "and it is convicted again if it goes on"


def test_findings_that_rules_count_are_released(tmp_path):
    folder = tmp_path / "state"
    store = NodeStore(folder)
    store.ledger().record(*played(0, one_in(6, chance=random.Random(0))))
    counts = EProcessMemory(store=store, name="arithmetic")
    counts.add({"mal": (1, [5.0]), "ann": (2, [-1.0])})
    said = show(folder).stdout
    assert "rules that count findings, for --book: arithmetic ('mal': e = 10^1.9)" in said
    book = show(folder, "--book", "arithmetic").stdout.splitlines()
    assert book[:2] == ["'mal'  e = 10^1.9", "'ann'  e = 10^-0.7"]
    assert "From 10^3.8 on, its completions with a finding are rejected" in " ".join(book)
    unknown = show(folder, "--book", "arithmetics")
    assert unknown.exit_code == 2
    assert "got 'arithmetics', which has counted none; rules that have: arithmetic" in (
        unknown.stderr
    )
    assert CliRunner().invoke(app, ["ledger", "release", str(folder), "mal"]).exit_code == 0
    assert counts.log_e_values().keys() == {"ann"}


@pytest.mark.parametrize("command", [["show"], ["release"], ["show", "--book", "arithmetic"]])
def test_missing_ledger_names_where_one_is(tmp_path, command):
    def said(path):
        words = ["ledger", *command, str(path), *(["bob"] if command == ["release"] else [])]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        return result.stderr

    expected = "expected the folder that the guard file names as state:, or nodes.sqlite in it, got"
    (tmp_path / "guard-state").mkdir()
    missing = said(tmp_path / "guard_state")
    assert f"guard_state: {expected} none there; looked in {tmp_path}" in missing
    assert f"did you mean '{tmp_path / 'guard-state'}'?" in missing
    assert f"{expected} a folder without nodes.sqlite" in said(tmp_path / "guard-state")
    assert list((tmp_path / "guard-state").iterdir()) == []
    (tmp_path / "guard.yaml").write_text("preset: different_weights\n")
    assert f"guard.yaml: {expected} YAML" in said(tmp_path / "guard.yaml")
