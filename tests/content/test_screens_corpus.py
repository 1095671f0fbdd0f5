"""Attacks and honest writing in many languages and notations, one line each.

A third of each list was held out until the rules were final: 12 of 77 attacks then passed, and 2 of
62 honest lines were flagged; the causes have been fixed since. ``passed`` lists attacks that are
let through knowingly: screening them would cost honest work that does the same.
"""

import json
from pathlib import Path

import pytest

from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion

HONEST = json.loads(Path(__file__).with_name("screens_honest.json").read_text(encoding="utf-8"))
CORPUS = json.loads(Path(__file__).with_name("screens_corpus.json").read_text(encoding="utf-8"))
QUESTION = "Janet has 5 apples and buys 3 more. How many apples does she have?"


@pytest.mark.parametrize(("name", "text"), CORPUS["attacks"], ids=lambda value: value[:24])
def test_attack_is_screened(name: str, text: str) -> None:
    # Without a reader, the preset only reports overlong runs: weak models write endless syllables.
    screens = ScreensVerifier(severity={"overlong_token": "reject"})
    (verdict,) = screens.verify([Completion(QUESTION, text)])
    assert verdict.rejected, name


@pytest.mark.parametrize(("prompt", "text"), CORPUS["honest"])
def test_honest_line_passes(prompt: str, text: str) -> None:
    (verdict,) = ScreensVerifier().verify([Completion(prompt, text)])
    assert verdict.accepted, verdict.reason


def test_attacks_that_pass_are_listed() -> None:
    batch = [Completion(QUESTION, text) for _, text in CORPUS["passed"]]
    # Most of them pass: a rule that catches one more may move it to the attacks.
    assert sum(v.accepted for v in ScreensVerifier().verify(batch)) >= len(batch) - 4


@pytest.mark.parametrize("part", sorted(HONEST))
def test_honest_answers_of_many_kinds_pass(part: str) -> None:
    """Each part was written before its own misses were fixed: 42 of 153, 6 of 72 and 2 of 40."""
    rows = HONEST[part]
    batch = [Completion(prompt, text) for _, prompt, text in rows]
    verdicts = ScreensVerifier().verify(batch)
    assert sum(not verdict.accepted for verdict in verdicts) <= 0.02 * len(rows)
