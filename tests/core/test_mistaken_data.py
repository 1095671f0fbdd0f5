"""Mistakes in completions and verdicts: one message says what was expected and what to write."""

import pytest

import grpo_guard
from grpo_guard import Completion
from grpo_guard.core.verdict import Finding, reject

CALLS = {
    "a finding for a cause": (
        lambda: reject("x", Finding("odd", "It is odd.")),
        r"Verdict.cause: expected a Cause such as .*; write findings=\(...\)$",
    ),
    "findings for a cause": (
        lambda: reject("x", [Finding("odd", "It is odd.")]),
        r"Verdict.cause: expected a Cause such as .*; write findings=\(...\)$",
    ),
    "words for a cause": (
        lambda: reject("x", "because"),
        "Verdict.cause: expected a Cause such as .*got 'because'; .* into message=",
    ),
    "a completion without its text": (
        lambda: Completion("p"),
        r"Completion.text: expected a value, got nothing \(text of the completion",
    ),
    "a completion's misspelt field": (
        lambda: Completion("p", "t", completion_id=[1]),
        "Completion: expected one of .*got 'completion_id'; did you mean 'completion_ids'?",
    ),
    "another name for the text": (
        lambda: Completion.from_dict({"prompt": "p", "completion": "t"}),
        "completion: expected 'text' in its place",
    ),
    "two texts to check": (
        lambda: grpo_guard.check("p", "t"),
        r"check: expected at most 1 arguments in order \(text\), got 2",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_mistakes_in_data(case):
    call, message = CALLS[case]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
