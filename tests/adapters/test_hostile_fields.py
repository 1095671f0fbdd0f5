"""No field that a peer fills can stop a batch: only its own completion becomes malformed."""

import logging
import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from grpo_guard import CompletionVerifier, Guard, Policy
from grpo_guard.adapters.received import _warn_unused, received, reference_from
from grpo_guard.adapters.trl.batch import rows_from
from grpo_guard.core.completion import shown
from grpo_guard.core.verdict import Cause, accept, reject
from tests.adapters.hostile_entries import ENTRIES
from tests.adapters.hostile_tokenizers import Characters
from tests.helpers.hostile import EVERYTHING, HUGE, cyclic, deep, wide

CALLS = 150


class Reads(CompletionVerifier):
    """Reads everything that verifiers read, and accepts."""

    name = "reads"

    def verify(self, batch):
        return [accept(self.name) for c in batch if isinstance(c.prompt_text + repr(c), str)]


class Heard:
    def __init__(self):
        self.verdicts = []

    def record(self, batch, verdicts):
        assert len(batch) == len(verdicts)
        self.verdicts += verdicts


def judged(entry, rows):
    heard = Heard()
    guard = Guard(Reads(), policy=Policy("zero", "zero"), ledger=heard, tokenizer=Characters())
    rewards = entry.run(guard, rows)
    assert len(rewards) == len(rows)
    assert all(v.accepted or (v.rejected and v.cause is Cause.MALFORMED) for v in heard.verdicts), [
        v.reason for v in heard.verdicts
    ]
    return rewards


@pytest.mark.parametrize("name", ENTRIES)
def test_hostile_row_does_not_affect_the_others(name):
    entry, chance = ENTRIES[name], random.Random(17)
    assert judged(entry, [entry.fields] * 3) == [1.0] * 3
    for _ in range(CALLS):
        rows = [dict(entry.fields) for _ in range(3)]
        place = chance.randrange(3)
        fields = chance.sample(sorted(entry.fields), chance.choice([1, 1, 1, 2, 3]))
        changes = {field: chance.choice(EVERYTHING) for field in fields}
        rows[place].update(changes)
        try:
            rewards = judged(entry, rows)
        except Exception as error:
            said = {field: shown(value) for field, value in changes.items()}
            raise AssertionError(f"{name}: {said}: {error!r}") from error
        assert rewards.pop(place) in (0.0, 1.0)
        assert rewards == [1.0, 1.0]


NOT_OWN = [(name, field) for name, entry in ENTRIES.items() for field in entry.own]


@pytest.mark.parametrize(("name", "field"), NOT_OWN)
@pytest.mark.parametrize(
    "value",
    [HUGE, 1.5, deep(), cyclic(mapping=True), wide(), {1: object()}],
    ids=["huge", "float", "deep", "cyclic", "wide", "object"],
)
def test_row_without_text_or_ids_earns_nothing(name, field, value):
    entry = ENTRIES[name]
    rows = [dict(entry.fields) for _ in range(3)]
    rows[1][field] = value
    assert judged(entry, rows) == [1.0, 0.0, 1.0]


def test_unreadable_completion_still_counts_against_its_node():
    """A list that contains itself among a tool call's arguments, and unprintable numbers."""
    for value in (cyclic(), wide(), HUGE):
        call = {"function": {"name": "f", "arguments": value}}
        said = [{"role": "assistant", "content": "seven", "tool_calls": [call]}]
        given = {k: [v] * 3 for k, v in ENTRIES["trl"].fields.items()} | {"completions": [said] * 3}
        rows = rows_from(given)
        completions = [row.completion for row in rows]
        assert [(c.node, c.group, c.slot) for c in completions] == [("n", 0, 1)] * 3
        assert all(row.was_repaired for row in rows)


@pytest.mark.parametrize("name", ["trl", "ms_swift", "verl", "slime", "slime_group"])
def test_untraversable_prompt_earns_nothing(name):
    entry = ENTRIES[name]
    field = {"trl": "prompts", "ms_swift": "messages"}.get(name, "prompt")
    for value in (deep(mapping=True), deep(), cyclic(), HUGE, {"a": HUGE}):
        rows = [dict(entry.fields) for _ in range(3)]
        chat = [{"role": "user", "content": value}]
        rows[1][field] = [*chat, *chat]
        assert judged(entry, rows) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("7", "7"), (7, "7"), (7.0, "7"), (0.1, "0.1"), (1e300, "1e+300"),
        (10**400, "1" + "0" * 400),
        (np.int64(7), "7"), (np.float64(7), "7"), (np.float32(0.1), "0.1"), (np.str_("7"), "7"),
        (np.array(7), "7"), (torch.tensor(7), "7"), (torch.tensor(0.5), "0.5"),
        (Decimal("7.50"), "7.50"), (Fraction(1, 3), "1/3"), (-0.0, "0"),
        ("", None), (None, None), (float("nan"), None), (np.float64("nan"), None),
    ],
)  # fmt: skip
def test_reference_may_be_text_or_number(value, text, caplog):
    assert reference_from(value) == text
    assert not caplog.records


@pytest.mark.parametrize("value", ["7", 7, 7.0, np.float64(7), np.array(7), torch.tensor(7.0)])
def test_one_number_names_one_node(value):
    assert received("", "", node=value).completion.node == "7"


def test_unsupported_reference_type_warns_once(caplog):
    _warn_unused.cache_clear()
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        assert [reference_from(v) for v in ([1], [2], True, {"a": 1}, np.ones(2))] == [None] * 5
    said = [record.getMessage() for record in caplog.records]
    assert [words.split()[4] for words in said] == ["list", "bool", "dict", "ndarray"]


REFERENCES = {"trl": "answer", "verl": "ground_truth", "openrlhf": "label", "slime": "label"}
REFERENCES |= {"ms_swift": "answer", "verifiers": "answer", "openrlhf_agent": "label"}


@pytest.mark.parametrize("name", [*REFERENCES, "verl_manager"])
def test_every_adapter_accepts_numeric_references(name):
    class Right(Reads):
        def verify(self, batch):
            return [accept("r") if c.reference == "942" else reject("r") for c in batch]

    for value in (942, 942.0, np.int64(942), "942"):
        rows = [dict(ENTRIES[name].fields) for _ in range(2)]
        for row in rows:
            if name == "verl_manager":
                row["reward_model"] = {"ground_truth": value}
            else:
                row[REFERENCES[name]] = value
        guard = Guard(Right(), policy=Policy("zero", "zero"), tokenizer=Characters())
        assert ENTRIES[name].run(guard, rows) == [1.0, 1.0]
