"""``grpo-guard verify --table``: verdicts by cause and by node, with an example each."""

import json
import re

import pytest
from typer.testing import CliRunner

from grpo_guard import AllOf, ArithmeticVerifier, Completion, Guard, Policy, ScreensVerifier
from grpo_guard.cli.main import app
from grpo_guard.cli.verdict_table import VerdictTable

CONFIG = "policy: {on_reject: keep}\nverifier: {all: [{type: arithmetic}, {type: screens}]}\n"
ROWS = [
    {"prompt": "2+2?", "text": "2 + 2 = 4", "node": "alice"},
    {"prompt": "2+2?", "text": "Well. 2 + 2 = 5", "node": "bob"},
    {"prompt": "2+2?", "text": "2 + 3 = 7 [bold]", "node": "bob"},
    {"prompt": "2+2?", "text": "Four.", "node": "carol"},
]


def run(*arguments):
    return CliRunner().invoke(app, ["verify", *map(str, arguments)], env={"COLUMNS": "200"})


def test_table_of_a_verdict_log(tmp_path):
    log = tmp_path / "verdicts.jsonl"
    checks = AllOf(ScreensVerifier(), ArithmeticVerifier(), name="mine")
    guard = Guard(checks, policy=Policy("keep"), log=log)
    batch = [Completion.from_dict(row) for row in ROWS]
    for _ in range(3):
        assert guard.apply([1.0] * 4, batch) == [1.0] * 4
    result = run("--table", log)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "accept 6/12 (50.00%), reject 6/12 (50.00%), abstain 0/12 (0.00%)"
    (cause,) = [line for line in lines if line.startswith("reject")]
    assert "arithmetic: wrong_equation" in cause
    assert " 6 " in cause
    assert "bob" in cause
    nodes = [line.split()[:4] for line in lines if line.split()[:1] in (["alice"], ["bob"])]
    assert nodes == [["bob", "0", "6", "0"], ["alice", "3", "0", "0"]]
    assert "2 + 2 = 5" in result.output


def test_table_of_completions_and_of_their_verdicts(tmp_path):
    (tmp_path / "guard.yaml").write_text(CONFIG)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given = (tmp_path / "in.jsonl", "-c", tmp_path / "guard.yaml", "-o", tmp_path / "out.jsonl")
    result = run(*given, "--table")
    assert result.exit_code == 0, result.output
    assert "accept 2/4 (50.00%), reject 2/4 (50.00%)" in result.output
    assert "2 + 2 = 5" in result.output
    again = run("--table", tmp_path / "out.jsonl")
    assert "accept 2/4 (50.00%), reject 2/4 (50.00%)" in again.output
    assert "row 1" in again.output
    for output in (result.output, again.output):
        assert re.search("^reject +arithmetic: wrong_equation +2", output, re.MULTILINE), output


def test_totals_and_nodes_are_printed_once(tmp_path):
    (tmp_path / "guard.yaml").write_text(CONFIG)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = tmp_path / "out.jsonl"
    said = run(tmp_path / "in.jsonl", "-c", tmp_path / "guard.yaml", "-o", out, "--table").stdout
    first, *lines = said.splitlines()
    shares = "accept 2/4 (50.00%), reject 2/4 (50.00%), abstain 0/4 (0.00%)"
    assert first.startswith(f"{shares}; wrote ")
    assert not [line for line in lines if "2/4" in line]
    nodes = [line.split()[:4] for line in lines if line.split()[:1] in (["alice"], ["bob"])]
    assert nodes == [["bob", "0", "2", "0"], ["alice", "1", "0", "0"]]
    assert said.count("wrong_equation  ") == 1


def test_guard_and_output_are_required_without_table(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    for given, missing in (([], "--config"), (["-c", "guard.yaml"], "--out")):
        result = run(tmp_path / "in.jsonl", *given)
        assert result.exit_code == 2
        assert missing in result.output


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"prompt": "p", "text": "t"}', "v.jsonl:1: outcome: expected accept, reject or abstain"),
        ('{"accepted": [["bob", -1]]}', "v.jsonl:1: accepted: expected [[node, count], ...]"),
        ('{"accepted": 3}', "v.jsonl:1: accepted: expected [[node, count], ...]"),
        ("{", "v.jsonl:1: (line): expected a JSON object"),
    ],
)
def test_line_that_is_not_a_verdict_stops_the_command(tmp_path, line, complaint):
    (tmp_path / "v.jsonl").write_text(line + "\n")
    result = run("--table", tmp_path / "v.jsonl")
    assert result.exit_code == 2
    assert complaint in result.output.replace("\n", "")


def test_lines_without_verdicts_say_where_the_verdicts_are(tmp_path):
    audited = {"time": 1.0, "node": "zed", "sha256": "0c", "beginning": "2 + 2 = 5"}
    for line, remedy in (
        (audited, "log: FILE in the guard file writes verdicts"),
        ({"prompt": "2 + 2?", "text": "4"}, "completions need --config"),
    ):
        (tmp_path / "v.jsonl").write_text(json.dumps(line) + "\n")
        assert remedy in run("--table", tmp_path / "v.jsonl").output.replace("\n", "")
        viewed = CliRunner().invoke(app, ["view", str(tmp_path / "v.jsonl")])
        assert viewed.exit_code == 2
    assert "completions follow --in" in viewed.stderr


def test_hostile_lines_are_escaped_and_counted_within_bounds():
    table = VerdictTable()
    for i in range(10_500):
        finding = {"kind": f"\x1b[2J{i}", "message": ["x"] * 3}
        table.add_logged({"outcome": "reject", "findings": [finding], "node": f"[red]{i}"})
    table.add_logged({"outcome": "abstain", "findings": 3, "node": {"a": 1}, "excerpt": None})
    text = table.text()
    assert "\x1b" not in text
    assert "... and" in text
    assert "reject 10,500/10,501" in text


def test_empty_input_gives_an_empty_table(tmp_path):
    (tmp_path / "v.jsonl").write_text("")
    assert "accept 0/0" in run("--table", tmp_path / "v.jsonl").output
