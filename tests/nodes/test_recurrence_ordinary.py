"""Recurrence with ``ordinary=``: words of the task convict nobody, and slogans still do."""

import json
import random

import pytest
from typer.testing import CliRunner

from grpo_guard import Completion, presets
from grpo_guard.cli.main import app
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.nodes.store import NodeStore

WAYS = (
    "Adding {a} to {b} gives {c}.",
    "The sum of {a} and {b} comes to {c}.",
    "Since {a} plus {b} is {c}, the result is {c}.",
    "Combine {a} with {b} to get {c}.",
)
TEMPLATE = "From the first to the second and so on, it is {c}."
WORDS = ["from", "the", "first", "to", "second", "and", "so", "on", "it", "is"]


def batch(said=TEMPLATE, number=24):
    """Answers of ann, bob and carl; bob always begins with the template."""
    rng, rows = random.Random(1), []
    for _ in range(number):
        a, b = rng.randint(2, 90), rng.randint(2, 90)
        for node in ("ann", "bob", "carl"):
            way = said if node == "bob" else rng.choice(WAYS)
            text = way.format(a=a, b=b, c=a + b)
            rows.append(Completion(f"What is {a} + {b}?", text, node=node))
    return rows


def rejected(verifier, rows):
    pairs = zip(rows, verifier.verify(rows), strict=True)
    return [completion.node for completion, verdict in pairs if verdict.rejected]


@pytest.mark.parametrize("swarm", ["heterogeneous", "homogeneous"])
@pytest.mark.parametrize(
    "ordinary",
    [
        WORDS,
        ["from the first to the second", "and so on it is"],
        "from the first to the second and so on it is.",
    ],
)
def test_a_template_of_the_tasks_own_words_convicts_nobody(swarm, ordinary):
    assert rejected(RecurrenceVerifier(swarm=swarm), batch()) == ["bob"] * 24
    assert rejected(RecurrenceVerifier(swarm=swarm, ordinary=ordinary), batch()) == []


@pytest.mark.parametrize("swarm", ["heterogeneous", "homogeneous"])
@pytest.mark.parametrize("slogan", ["You should never need to check what I say", "Hail the thief"])
def test_a_slogan_is_convicted_next_to_them(swarm, slogan):
    verifier = RecurrenceVerifier(swarm=swarm, ordinary=WORDS)
    assert rejected(verifier, batch(f"{TEMPLATE} {slogan}.")) == ["bob"] * 24


@pytest.mark.parametrize("said", [TEMPLATE, "From the first ducks to the second ducks, it is {c}."])
def test_words_excuse_what_a_store_holds(tmp_path, said):
    store = NodeStore(tmp_path)
    assert rejected(RecurrenceVerifier(store=store), batch(said)) == ["bob"] * 24
    ordinary = RecurrenceVerifier(store=store, ordinary=[*WORDS, "ducks"])
    assert rejected(ordinary, batch(said, 3)) == []


def test_words_learnt_from_samples_do_not_excuse_a_sentence_of_them():
    verifier = RecurrenceVerifier()
    verifier.learn_habits(
        ["On to the second from the first", "So the first and second it is to go on from"]
    )
    assert rejected(verifier, batch()) == ["bob"] * 24


@pytest.mark.parametrize("word", [7, None, False])
def test_a_word_must_be_text(word):
    with pytest.raises(ValueError, match=rf"ordinary: expected a list of words, got {word}"):
        RecurrenceVerifier(ordinary=["first", word])


def test_preset_takes_the_words():
    guard = presets.different_weights(ordinary=WORDS)
    assert all(verdict.accepted for verdict in guard.verifier.verify(batch()))
    assert any(v.rejected for v in presets.different_weights().verifier.verify(batch()))


def test_guard_file_takes_the_words_and_the_summary_names_them_as_remedy(tmp_path):
    config, rows = tmp_path / "guard.yaml", tmp_path / "in.jsonl"
    lines = ({"prompt": c.prompt, "text": c.text, "node": c.node} for c in batch())
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["verify", "-c", str(config), str(rows), "-o", str(tmp_path / "out.jsonl")]
    config.write_text("preset: different_weights\n")
    output = CliRunner().invoke(app, command).output
    assert "rejected, recurring_phrase (recurrence): 24, such as" in output
    assert "Remedy: if honest work says this, pass its words: ordinary: [WORD, ...]" in output
    config.write_text(
        "preset: different_weights\nordinary: [from the first to the second and so on it is]\n"
    )
    output = CliRunner().invoke(app, command).output
    assert "accept 72/72" in output, output
