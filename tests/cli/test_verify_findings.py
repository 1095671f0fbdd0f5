"""``grpo-guard verify``: findings that decide nothing, names, and rows that others hide."""

import json

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.formats import FIELD_CALLED
from grpo_guard.cli.main import app
from tests.docs.doc_pages import ROOT


@pytest.fixture
def verify(tmp_path):
    def run(rows, *options, guard="preset: different_weights"):
        (tmp_path / "guard.yaml").write_text(guard + "\n")
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["verify", "-c", "guard.yaml", "in.jsonl", "-o", "out.jsonl"]
        words = [str(tmp_path / word) if "." in word else word for word in command]
        return CliRunner().invoke(app, [*words, *options], env={"COLUMNS": "200"})

    return run


def sums(count=8, **more):
    return [
        {
            "prompt": f"{i}+1?",
            "text": f"{i}+1={i + 1 + (i % 4 == 0)}",
            "node": ("Zoë", "李雷", "ann")[i % 3],
            **{name: str(i + 1) for name in more},
        }
        for i in range(2, count + 2)
    ]


def test_wrong_sums_that_a_reference_excuses_are_named(verify, tmp_path):
    said = verify(sums()).output
    assert "accept 6/8, reject 2/8" in said
    assert "accepted with" not in said
    said = verify(sums(reference=True)).output
    assert "accept 8/8" in said
    assert "accepted with wrong_without_gain (arithmetic): 2, such as " in said
    assert "Wrong, but earning nothing: the final answer is not the reference" in said
    counted = json.loads(verify(sums(reference=True), "--format", "json").output)
    (found,) = counted["accepted_with"]
    assert (found["kind"], found["count"]) == ("wrong_without_gain", 2)
    for output in (
        verify(sums(reference=True), "--table").output,
        CliRunner().invoke(app, ["verify", "--table", str(tmp_path / "out.jsonl")]).output,
    ):
        (line,) = [one for one in output.splitlines() if one.startswith("accept  ")]
        assert "arithmetic: wrong_without_gain  2" in line


def test_accepted_rows_of_a_convicted_node_say_how_to_reject_them(verify, tmp_path):
    rows = [
        {"prompt": f"{i}, {i + 9}?", "text": f"{i} + {i + 9} = {n}. It is {n}.", "node": w}
        for i in range(60)
        for w in ("a", "b", "c", "w")
        for n in [2 * i + 9 + (w == "w" and i % 2)]
    ]
    guard = f"preset: different_weights\nstate: {tmp_path / 'state'}"
    again = "Rows before their node's conviction stay accepted; with state: in the guard file, the"
    first = verify(rows, guard=guard).output
    assert "rejected, frequent_finding (frequent_findings):" in first
    assert again in first
    second = verify(rows, guard=guard).output
    assert "reject 30/240" in second
    assert again not in second


def test_names_are_shown_as_they_are(verify):
    rows = sums()
    rows[0]["node"] = "bad\x1b[2J\u202e\u3164"
    for options in ((), ("--table",)):
        said = verify(rows, *options).output
        assert "Zoë" in said
        assert "李雷" in said
        assert "bad\\x1b[2J\\u202e\\u3164" in said


def test_a_malformed_row_counts_for_the_node_that_it_names(verify):
    rows = [
        {"prompt": "2?", "text": "It is 2.", "node": "ann"},
        {"prompt": "2?", "text": 5, "node": "bob"},
    ]
    said = verify(rows, "--keep-going", guard="verifier: {type: recurrence}").output
    assert "bob   0       1       0" in said
    assert "Remedy: mend the malformed rows: all others name one sender" in said
    assert "leave out node" not in said


def test_an_answer_is_offered_as_the_missing_text(verify):
    said = verify([{"question": "2?", "answer": "2"}])
    assert said.exit_code == 2
    assert "--map prompt=question --map text=answer" in said.output
    said = verify([{"question": "2?", "answer": "2"}], "--map", "prompt=question")
    assert "name it: --map text=answer --map prompt=question" in said.output
    said = verify([{"question": "2?", "said": "2", "answer": "2"}], "--map", "text=said")
    assert said.exit_code == 0, said.output


def test_several_fields_in_one_option_are_repeated(verify):
    said = verify(sums(), "--map", "text=said,prompt=frage")
    assert said.exit_code == 2
    assert "repeat the option: --map text=said --map prompt=frage" in said.output


def test_a_column_in_another_script_can_be_copied(verify):
    said = verify([{"prompt": "2?", "txt": "2", "antwört": "2"}])
    assert "antwört" in said.output


def test_the_page_lists_every_other_name():
    page = (ROOT / "docs" / "verify.md").read_text()
    listed = {
        name.strip(" `"): row.split("|")[1].strip(" `")
        for row in page.splitlines()
        if row.startswith("| `")
        for name in row.split("|")[2].split(",")
    }
    assert listed == {**FIELD_CALLED, "example_id": "id"}
