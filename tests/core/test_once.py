"""`check` and `Guard.verify`: verdicts in one call."""

import logging

import pytest

import grpo_guard
from grpo_guard import Completion, Guard, ScreensVerifier
from grpo_guard.core.completion import CompletionError
from grpo_guard.core.verdict import Outcome


def test_check_gives_one_verdict_for_one_text(caplog):
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        right = grpo_guard.check("7 - 5 = 2, so the answer is 2.", prompt="What is 7 - 5?")
        wrong = grpo_guard.check("```python\nimport evil_package\nprint(1)\n```", prompt="Print 1.")
    assert (right.outcome, wrong.outcome) == (Outcome.ACCEPT, Outcome.REJECT)
    assert wrong.findings[0].char_span is not None
    assert caplog.records == []


def test_calls_are_independent():
    said = [
        grpo_guard.check("All hail to the thief.", prompt=f"Q{i}?", node="a") for i in range(40)
    ]
    assert {verdict.outcome for verdict in said} == {Outcome.ACCEPT}


def test_check_takes_a_guard_and_further_fields():
    guard = Guard(ScreensVerifier())
    assert grpo_guard.check("fine", prompt="Q?", guard=guard, reference="42").verifier == "screens"
    with pytest.raises(CompletionError, match="text: expected a string, got 7"):
        grpo_guard.check(7)


def test_batch_gets_one_verdict_each_in_order():
    batch = [Completion("p", "fine"), Completion("p", "a\u202eb"), Completion("p", "fine")]
    said = Guard(ScreensVerifier()).verify(batch)
    assert [verdict.rejected for verdict in said] == [False, True, False]
