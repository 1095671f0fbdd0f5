"""A verifier without its input says so once; its metric distinguishes that from a clean batch."""

import logging

import pytest

from grpo_guard import Completion, CompletionVerifier, Guard, presets
from grpo_guard.core.ensemble import only
from grpo_guard.core.verdict import accept

PHRASE = "All hail to the thief. "


class Agreeable(CompletionVerifier):
    name = "agreeable"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]


def batches(named):
    for step in range(3):
        yield [
            Completion(
                f"Question {step}.{i}?",
                f"{PHRASE if n == 0 else ''}The answer is {i + step}.",
                node=f"node-{n}" if named else None,
            )
            for n in range(4)
            for i in range(2)
        ]


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if "completions of this batch has" in r.message]


def test_missing_node_names_warn_once_with_the_remedy(caplog):
    guard = presets.different_weights()
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        found = [guard.review(batch).metrics for batch in batches(named=False)]
    (said,) = warnings(caplog)
    assert "none of the 8 completions of this batch has 'node'" in said
    for idle in (
        "recurrence looks at nothing",
        "standing cannot reject convicted nodes",
        "the ledger records",
    ):
        assert idle in said
    assert "a dataset column 'node' in TRL" in said
    assert {m["guard/not_applicable_rate/recurrence"] for m in found} == {1.0}
    assert {m["guard/not_applicable_rate/screens"] for m in found} == {0.0}


def test_node_names_give_no_warning_and_rate_0(caplog):
    guard = presets.different_weights()
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        found = [guard.review(batch).metrics for batch in batches(named=True)]
    assert warnings(caplog) == []
    assert {m["guard/not_applicable_rate/recurrence"] for m in found} == {0.0}


def test_restriction_to_a_task_needs_tasks(caplog):
    guard = Guard(only(Agreeable(), task="code") & Agreeable())
    guard.review([Completion("p", "t", task="code"), Completion("p", "t")])
    assert warnings(caplog) == []
    guard.review([Completion("p", "t")])
    assert "has 'task', so agreeable looks at nothing" in warnings(caplog)[0]


@pytest.mark.parametrize("count", [0, 1])
def test_verifier_without_requirements_is_never_idle(caplog, count):
    Guard(Agreeable()).review([Completion("p", "t")] * count)
    assert warnings(caplog) == []
