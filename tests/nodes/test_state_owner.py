"""A state folder says so if another guard wrote to it; the same guard again does not."""

import logging

import pytest

from grpo_guard import presets
from grpo_guard.config import GuardConfig
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier

TREE = "state: {}\nledger: {{}}\nverifier: {{all: [{{type: code}}, {{type: recurrence{}}}]}}"


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


@pytest.mark.parametrize("content", ["", "[]", '{"code": 3}', "[" * 10_000])
def test_damaged_note_is_replaced(tmp_path, caplog, content):
    (tmp_path / "guard.json").write_text(content)
    of_tree(tmp_path)
    assert '"recurrence"' in (tmp_path / "guard.json").read_text()
    assert "another guard" not in caplog.text
