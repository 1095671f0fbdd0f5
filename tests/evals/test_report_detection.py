"""The report of a detection run: rates, members, and examples."""

from __future__ import annotations

import re

import pytest

from tests.evals.report_samples import Page, example, page


def test_detection_results_put_false_positives_first() -> None:
    row = {"defence": "logprob_bound", "metric": "rejected", "low": 0.0, "high": 1.0}
    shown = page(
        {
            "runs": [],
            "summary": [
                row | {"attack": "text", "mean": 0.995, "n": 200, "rejected": 199, "abstained": 1},
                row | {"attack": "honest", "mean": 0.005, "n": 200, "rejected": 1, "abstained": 0},
                row | {"attack": "empty", "mean": None, "low": None, "high": None, "n": 0},
            ],
            "examples": [example("<b>POISON</b>", (3, 9)) | {"kind": "text"}],
        }
    )
    assert "logprob_bound rejected 1 of 200 honest completions (0.50" in shown.text
    assert shown.text.index("1 / 200") < shown.text.index("199 / 200")
    assert shown.marks[1:] == ["POISON"]


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ({"deciding": {"log_probs": 2.3e-4}}, "p-value of log_probs: 2.3e-04, the chance that"),
        ({"deciding": {}}, ""),  # decided by a rule, which has none
        ({}, "p-value 2.3e-03, combined over all members, so it is larger than the deciding one."),
        ({"rejected_by": []}, "p-value of same_weights: 2.3e-03, the chance that"),
    ],
)
def test_p_value_shown_is_that_of_the_member_that_decided(verdict: dict, said: str) -> None:
    stack = {"verifier": "same_weights", "p_value": 2.3e-3, "rejected_by": ["log_probs"]}
    shown = example("<b>POISON</b>", (3, 9), **stack | verdict) | {"kind": "text"}
    text = re.sub(r"\s+", " ", _detection(examples=[shown]).text)
    assert text.count("p-value") == bool(said)
    assert said in text


def _detection(**more: object) -> Page:
    row = {"metric": "rejected", "low": 0.0, "high": 1.0}
    rows = [
        ("honest", "rules", 1, {"shouting": 1}),
        ("text", "rules", 150, {"shouting": 150, "screens": 20}),
        ("math", "rules", 0, {}),
        ("control:empty", "rules", 50, {"screens": 50}),
    ]
    summary = [
        row | {"attack": attack, "defence": defence, "mean": count / 200, "n": 200,
               "rejected": count, "members": members}
        for attack, defence, count, members in rows
    ]  # fmt: skip
    return page({"runs": [], "summary": summary} | more)


def test_detection_headline_says_what_was_caught() -> None:
    shown = _detection()
    assert (
        "rules rejected 1 of 200 honest completions (0.50\u00a0%) and 150 of 400 poisoned ones "
        "(37.5\u00a0%)."
    ) in shown.text


def test_passed_poison_that_earns_nothing_is_counted_apart_and_explained() -> None:
    row = {"metric": "rejected", "low": 0.0, "high": 1.0, "defence": "rules"}
    found = [{"kind": "wrong_without_gain", "message": "2 + 9 is 11", "char_span": [3, 9]}]
    found += [{"kind": "taken_back", "message": "2 + 2 is 4"}, {"kind": "mine", "message": "odd"}]
    passed = example("<b>POISON</b>", (3, 9), outcome="accept", findings=found)
    shown = page(
        {
            "runs": [],
            "summary": [
                row | {"attack": "honest", "mean": 0.0, "n": 90, "rejected": 0},
                row | {"attack": "math", "mean": 0.0, "n": 62, "rejected": 0, "abstained": 6,
                       "earns_nothing": 55},
                row | {"attack": "text", "mean": 0.5, "n": 8, "rejected": 4},
            ],
            "examples": [passed | {"kind": "math", "earns_nothing": True}],
        }
    )  # fmt: skip
    text = re.sub(r"\s+", " ", shown.text)
    assert (
        "4 of 70 poisoned ones (5.7 %); of those that passed, 55 of 60 were found, but their "
        "answer is wrong, so they earn nothing."
    ) in text
    assert "55 of 56 accepted earn nothing" in text
    assert "The rates count it as not rejected." in text
    assert "Poison that passed, but earns nothing: math" in text
    assert "2 + 9 is 11 (wrong_without_gain: wrong, but without gain: the answer is wrong" in text
    assert "2 + 2 is 4 (taken_back: counts, and rejects once" in text
    assert "odd." in text
    assert "Its answer is wrong, so it earns no reward" in text


def test_guard_members_are_credited() -> None:
    shown = _detection()
    assert "Which members rejected" in shown.text
    table = shown.text.partition("Which members rejected")[2]
    assert table.index("shouting") < table.index("screens") < table.index("150 / 200")
    assert table.index("150 / 200") < table.index("20 / 200") < table.index("control:empty")
    assert "control:NAME is a negative control: no attack" in shown.text


def test_binary_rules_have_no_curve() -> None:
    graded = {"honest_p_values": {"rules": [0.5, 1.0]}, "p_values": {"rules": {"text": [0.001]}}}
    shown = _detection(**graded)
    assert "svg" in [tag for tag, _ in shown.tags]
    assert "poisoned completions rejected" in shown.text, "the vertical axis has a name"
    assert "honest completions rejected" in shown.text
    yes_no = {"honest_p_values": {"rules": [0.0, 1.0]}, "p_values": {"rules": {"text": [0.0, 1]}}}
    assert "svg" not in [tag for tag, _ in _detection(**yes_no).tags]


def test_rules_without_a_curve_are_listed() -> None:
    shown = _detection(
        honest_p_values={"rules": [1.0, 1.0], "model": [0.3, 0.9]},
        p_values={"rules": {"text": [0.0]}, "model": {"text": [0.01]}},
    )
    assert "No curve for rules: rules that answer yes or no have no threshold." in shown.text
