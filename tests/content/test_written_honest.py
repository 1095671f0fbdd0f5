"""Honest answers of many kinds, written without knowledge of the rules, pass the preset."""

import json
from pathlib import Path

import pytest

from grpo_guard import Completion, presets

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("written_honest.jsonl").read_text("utf-8").splitlines()
]
SETS = sorted({row["set"] for row in ROWS})


@pytest.mark.parametrize("name", SETS)
def test_at_most_one_in_a_hundred_is_rejected(name):
    rows = [row for row in ROWS if row["set"] == name]
    batch = [Completion(row["prompt"], row["completion"], node=row["node"]) for row in rows]
    guard = presets.different_weights()
    said = [v for i in range(0, len(batch), 32) for v in guard.review(batch[i : i + 32]).verdicts]
    assert not any(v.abstained for v in said)
    rejected = [row["kind"] for row, v in zip(rows, said, strict=True) if v.rejected]
    assert len(rejected) <= len(rows) // 100, rejected
