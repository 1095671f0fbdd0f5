"""A state folder says so if another guard wrote to it; the same guard again does not."""

import itertools
import json
import logging

import pytest

from grpo_guard import CompletionVerifier, presets
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.core.verdict import accept
from grpo_guard.guard.state_owner import FILE, FORMAT

RANKS = itertools.count()

TREE = "state: {}\nledger: {{}}\nverifier: {{all: [{{type: code}}, {{type: recurrence{}}}]}}"


class Verifier(CompletionVerifier):
    def verify(self, batch):
        return [accept(self.name) for _ in batch]


def of_tree(folder, options=""):
    return GuardConfig.from_text(TREE.format(folder, options), "guard.yaml").build()


MADE = {
    "a preset": lambda folder: presets.different_weights(state=folder),
    "a preset with another verifier": lambda folder: presets.different_weights(
        state=folder, beside=[RecurrenceVerifier(swarm="homogeneous")]
    ),
    "a judge": lambda folder: presets.judged("shipped", state=folder),
    "a tree": of_tree,
    "a tree with other options": lambda folder: of_tree(folder, ", swarm: homogeneous"),
}


@pytest.mark.parametrize("name", MADE)
def test_the_same_guard_again_says_nothing(tmp_path, caplog, name):
    for _ in range(2):
        MADE[name](tmp_path)
    assert "written by another guard" not in caplog.text


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        (
            "a preset",
            "a judge",
            "with answer_words, arithmetic, code, recurrence, screens;",
        ),
        ("a judge", "a tree", "another guard: with judge; without code, recurrence."),
        ("a tree", "a tree with other options", "with another swarm of recurrence"),
    ],
)
def test_another_guard_is_said_with_what_differs(tmp_path, caplog, first, second, differs):
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        MADE[first](tmp_path)
        assert "another guard" not in caplog.text
        MADE[second](tmp_path)
    assert differs in caplog.text
    assert "give each guard a folder of its own" in caplog.text


@pytest.mark.parametrize("content", ["", "[]", '{"preset": "judged"}', "[" * 10_000, "code: 3"])
@pytest.mark.parametrize("name", [FILE, "guard.json"])
def test_file_of_somebody_else_is_left_alone(tmp_path, caplog, name, content):
    (tmp_path / name).write_text(content)
    of_tree(tmp_path)
    assert (tmp_path / name).read_text() == content
    assert "another guard" not in caplog.text


@pytest.mark.parametrize("damaged", [3, {"code": 3}, None])
def test_damaged_note_is_replaced(tmp_path, caplog, damaged):
    (tmp_path / FILE).write_text(json.dumps({"format": FORMAT, "verifiers": damaged}))
    of_tree(tmp_path)
    assert '"recurrence"' in (tmp_path / FILE).read_text()
    assert "another guard" not in caplog.text


class Unready(Verifier):
    name = "unready"

    def check(self):
        raise RuntimeError("no server")


UNREADY = "{type: tests.nodes.test_state_owner:Unready}"
PRESET = f"preset: different_weights\nstate: {{}}\nbeside: [{UNREADY}]"


@pytest.mark.parametrize("text", [TREE.format("{}", "}, " + UNREADY[:-1]), PRESET])
def test_guard_that_is_refused_writes_no_note(tmp_path, caplog, text):
    of_tree(tmp_path, ", swarm: homogeneous")
    before = (tmp_path / FILE).read_text()
    with pytest.raises(ConfigError, match="no server"):
        GuardConfig.from_text(text.replace("{}", str(tmp_path), 1), "guard.yaml").build()
    assert (tmp_path / FILE).read_text() == before
    assert "another guard" not in caplog.text


class OfRank(Verifier):
    """What it derives differs between the ranks of a run; what it is given does not."""

    name = "of_rank"

    def __init__(self, limit=3, **options):
        super().__init__(**options)
        self.limit = limit
        self.rank = next(RANKS)
        self.batch_size = 8 * self.rank


@pytest.mark.parametrize(("limit", "warned"), [(3, False), (4, True)])
def test_only_arguments_are_options(tmp_path, caplog, limit, warned):
    presets.different_weights(state=tmp_path, beside=[OfRank()])
    presets.different_weights(state=tmp_path, beside=[OfRank(limit)])
    assert ("another limit of of_rank, 3 in place of 4" in caplog.text) == warned
    assert ("another guard" in caplog.text) == warned
