"""``grpo-guard verify`` and rounds: batches follow the rounds that the rows agree on."""

import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.cli.row_groups import whole_groups
from grpo_guard.cli.rows import Rows
from grpo_guard.nodes.report import read

NODES = ("ann", "bob", "cid", "mal")
ROUNDS = 14


def rows():
    return [
        {
            "prompt": f"What is {p} + {t}?",
            "text": f"I add. {p} + {t} = {p + t + (node == 'mal')}",
            "node": node,
            "round": t,
        }
        for t in range(ROUNDS)
        for p in range(4)
        for node in NODES
    ]


def by_node():
    return sorted(rows(), key=lambda row: row["node"])


def with_rounds_of_its_own():
    return [
        row | ({"round": 1000 + i} if row["node"] == "mal" else {}) for i, row in enumerate(rows())
    ]


@pytest.mark.parametrize("sent", [rows, by_node, with_rounds_of_its_own])
def test_the_ledger_counts_the_rounds_of_the_file(tmp_path, sent):
    (tmp_path / "guard.yaml").write_text(f"preset: different_weights\nstate: {tmp_path / 'st'}\n")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sent()))
    command = ["verify", "-c", "guard.yaml", "in.jsonl", "-o", "out.jsonl"]
    words = [str(tmp_path / word) if "." in word else word for word in command]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    shown = read(tmp_path / "st" / "nodes.sqlite")
    assert shown.rounds == ROUNDS
    worst = shown.nodes[0]
    assert (worst.node, worst.state.value) == ("mal", "hard")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    excluded = {
        row["prompt"].rpartition(" ")[2].rstrip("?")
        for row, line in zip(sent(), lines, strict=True)
        if any(m["verifier"] == "standing" and m["outcome"] == "reject" for m in line["members"])
    }
    # A round is judged when the second round after it begins.
    assert excluded == {str(t) for t in range(worst.since + 3, ROUNDS)}


def test_batches_hold_one_round_in_order_of_their_first_rows():
    groups, at = [1, 2, 3, 1, 4, 5], [1, 0, 0, 1, 1, 2]
    assert list(whole_groups(groups, 64, at)) == [[0, 3, 4], [1, 2], [5]]
    assert list(whole_groups(groups, 64)) == [[0, 3, 1, 2, 4, 5]]
    assert list(whole_groups(groups, 2, at)) == [[0, 3], [4], [1, 2], [5]]
    assert list(whole_groups(np.zeros(0), 2, np.zeros(0))) == []


def batches(rows):
    """Return the nodes of each batch, and the number of rows in the largest."""
    file = io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())
    read = Rows(file, "in.jsonl")
    found = list(whole_groups(read.groups, 64, read.rounds))
    return [{rows[i]["node"] for i in one} for one in found], max(map(len, found))


@pytest.mark.parametrize(
    "claim",
    [lambda row: {}, lambda row: {"round": 99}, lambda row: {"round": (row["round"] + 1) % ROUNDS}],
    ids=["none", "one of its own", "the next one"],
)
@pytest.mark.parametrize("sent", [rows, by_node])
def test_a_node_cannot_leave_its_peers_by_what_it_claims(sent, claim):
    made = sent()
    for row in made:
        if row["node"] == "mal":
            claimed = claim(row)
            del row["round"]
            row.update(claimed)
    assert all(nodes == set(NODES) for nodes in batches(made)[0])


def test_two_of_five_nodes_cannot_leave_their_peers():
    made = [
        {"prompt": f"p{p}", "text": f"{n} {p}", "node": n, "round": -9 if n in "de" else 0}
        for p in range(64)
        for n in "abcde"
    ]
    assert all(nodes == set("abcde") for nodes in batches(made)[0])


def test_one_rollout_label_does_not_join_a_whole_file():
    made = [
        {"prompt": f"p{p}", "text": f"{n} {p}", "node": n} | ({"rollout": "R"} if n == "d" else {})
        for p in range(1000)
        for n in "abcd"
    ]
    nodes, most = batches(made)
    assert most == 4 * 256
    assert all(one == set("abcd") for one in nodes)
