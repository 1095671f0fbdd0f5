"""The peer exchange example of the docs: run for real, and fed with hostile input."""

import importlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
VOCABULARY = 100
GOOD = {"prompt": 0, "slot": 1, "completion_ids": [1, 2]}


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("peer_exchange")


def read(example, data):
    return list(example.read_peer(io.BytesIO(data), VOCABULARY))


@pytest.mark.slow
def test_swarm_runs_and_accounts_for_every_line(example, tmp_path, capsys):
    counts = example.main(["--rounds", "2", "--exchange", str(tmp_path)])
    assert counts == {
        ("alice", "accept"): 8,
        ("bob", "accept"): 6,
        ("bob", "malformed"): 2,
        ("bob", "empty"): 2,
        ("mallory", "reject"): 8,
        ("mallory", "malformed"): 2,
        ("mallory", "empty"): 8,
    }
    out = capsys.readouterr().out
    for round in range(2):
        assert f"round {round}: bob.jsonl:4: " in out
        assert f"round {round}: mallory.jsonl:5: expected an object" in out
        sent = sum(len(p.read_bytes().splitlines()) for p in (tmp_path / str(round)).iterdir())
        assert sent == 9
    assert sum(n for (node, k), n in counts.items() if node != "alice" and k != "empty") == 2 * 9


@pytest.mark.parametrize(
    "change",
    [
        {"node": "bob"},
        {"text": "All hail to the thief"},
        {"prompt": 2},
        {"prompt": -1},
        {"prompt": True},
        {"prompt": 0.0},
        {"prompt": None},
        {"slot": -1},
        {"slot": 10**30},
        {"slot": "1"},
        {"completion_ids": []},
        {"completion_ids": None},
        {"completion_ids": "12"},
        {"completion_ids": [1] * 65},
        {"completion_ids": [VOCABULARY]},
        {"completion_ids": [-1]},
        {"completion_ids": [1.0]},
        {"completion_ids": [True]},
        {"completion_ids": [[1]]},
        {"completion_ids": [float("nan")]},
    ],
)
def test_invalid_line_is_reported_and_the_next_one_is_read(example, change):
    data = "\n".join(json.dumps(row) for row in (GOOD, GOOD | change, GOOD)).encode()
    (one, first), (two, complaint), (three, last) = read(example, data)
    assert (one, two, three) == (1, 2, 3)
    assert first == last == ((0, 1), [1, 2])
    assert isinstance(complaint, str)


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 4000, b"1" * 4095, b'{"prompt": 0}', b"\x00"],
)
def test_lines_that_are_not_objects_are_reported(example, line):
    good = json.dumps(GOOD).encode()
    found = read(example, b"\n".join([good, line, good]))
    assert [isinstance(what, str) for _, what in found] == [False, True, False]


def test_endless_file_of_a_peer_is_cut_and_reported(example):
    good = json.dumps(GOOD).encode() + b"\n"
    *kept, (number, complaint) = read(example, good * 10_000)
    assert len(kept) == example.MOST_LINES
    assert number == example.MOST_LINES + 1
    assert complaint.endswith("the rest of the file was not read")
    first, (number, complaint) = read(example, good + b"[" + b"1," * 5_000_000)
    assert first == (1, ((0, 1), [1, 2]))
    assert number == 2
    assert complaint.endswith("the rest of the file was not read")


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.just(json.dumps(GOOD).encode())), max_size=12))
def test_every_line_gives_a_completion_or_a_complaint(example, chunks):
    data = b"\n".join(chunks)
    sent = data.split(b"\n")
    sent = sent if sent[-1] else sent[:-1]
    found = read(example, data)
    if len(sent) <= example.MOST_LINES:
        assert [number for number, _ in found] == list(range(1, len(sent) + 1))
        for line, (_, what) in zip(sent, found, strict=True):
            assert isinstance(what, str) or json.loads(line) == GOOD


def test_only_files_of_known_peers_are_read(example, tmp_path):
    (tmp_path / "eve.jsonl").write_text(json.dumps(GOOD))
    (tmp_path / "alice.jsonl").write_text(json.dumps(GOOD))  # only this process is alice
    (tmp_path / "bob.jsonl").mkdir()
    node = example.Node(*example.load_bundled())
    batch, complaints = node.receive(tmp_path, 0, example.problems_of(0))
    assert batch == []
    assert len(complaints) == 3


def test_slot_counts_once_and_only_if_it_is_owed(example, tmp_path):
    node = example.Node(*example.load_bundled())
    problems = example.problems_of(0)
    (place, ids), *_ = node.draw(0, "bob", problems).items()
    prompt, slot = place
    rows = [(prompt, slot), (prompt, slot), (prompt, slot + 5), (1 - prompt, slot)]
    sent = [{"prompt": p, "slot": s, "completion_ids": ids} for p, s in rows]
    (tmp_path / "bob.jsonl").write_text("\n".join(json.dumps(row) for row in sent))
    batch, complaints = node.receive(tmp_path, 0, problems)
    assert (len(batch), complaints) == (4, [])
    node.learn(0, problems, batch)
    assert node.tally.counts["bob", "accept"] == 1
    assert node.tally.counts["bob", "reject"] == 3
