"""No field that a peer fills ends a batch: its completion alone is malformed, in its place."""

import random

import pytest
from hostile import EVERYTHING
from hostile_entries import ENTRIES

from grpo_guard import CompletionVerifier, Guard, Policy
from grpo_guard.completion import shown
from grpo_guard.verdict import Cause, accept

CALLS = 300


class Reads(CompletionVerifier):
    """Looks at all that verifiers look at, and accepts."""

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
    guard = Guard(Reads(), policy=Policy("zero", "zero"), ledger=heard)
    rewards = entry.run(guard, rows)
    assert len(rewards) == len(rows)
    assert all(v.accepted or (v.rejected and v.cause is Cause.MALFORMED) for v in heard.verdicts), [
        v.reason for v in heard.verdicts
    ]
    return rewards


@pytest.mark.parametrize("name", ENTRIES)
def test_a_hostile_row_is_rejected_or_ignored_and_the_others_are_judged(name):
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
