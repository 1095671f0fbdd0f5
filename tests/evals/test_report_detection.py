"""The report of a detection run: rates, members, and examples."""

import re
from dataclasses import replace

import pytest

from grpo_guard import Cause, Completion, SamplingSpec, Verdict, abstain, accept, reject
from grpo_guard.evals.detect.config import DetectConfig
from grpo_guard.evals.detect.matrix import Row
from grpo_guard.evals.detect.poison import Case
from grpo_guard.evals.detect.run import results_of
from tests.evals.report_samples import Page, example, page

SPEC = SamplingSpec(engine="transformers", temperature=1.0, top_k=0, top_p=1.0)


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


def _ran(verdicts: dict[str, list[Verdict]]) -> Page:
    """The report on verdicts of one verifier, by kind of completion."""
    case = Case(Completion("2 + 2?", "4", node="ann"))
    rows = [Row(kind, "mine", case, verdict) for kind, own in verdicts.items() for verdict in own]
    config = DetectConfig(None, SPEC)
    return page(results_of(config, rows, command="", seconds=0.0))


def test_honest_work_rejected_without_a_p_value_is_rejected_at_every_threshold() -> None:
    passed = [replace(accept("mine"), p_value=0.3), accept("mine")] * 95
    text = [reject("mine")] * 199 + [replace(accept("mine"), p_value=0.5)]
    shown = _ran({"honest": passed + [reject("mine")] * 10, "text": text})
    curve = re.sub(r"\s+", " ", shown.text.partition("Caught against wrongly rejected")[2])
    assert "10 / 200" in shown.text
    assert "0.9725" in curve, "199 of 200 tie with 10 of 200 at p = 0, one lies in the middle"
    assert "0 / 200" in curve, "at no honest rejection, none of the poison is caught"


def test_abstentions_count_as_not_rejected_in_table_and_curve() -> None:
    shown = _ran({
        "honest": [replace(accept("mine"), p_value=0.3)] * 4,
        "text": [reject("mine"), abstain("mine", Cause.TIMEOUT)],
    })  # fmt: skip
    curve = shown.text.partition("Caught against wrongly rejected")[2]
    assert shown.text.count("1 / 2") == 2
    assert "1 / 2" in curve


def test_a_curve_that_contradicts_the_table_is_left_out() -> None:
    row = {"defence": "mine", "metric": "rejected", "mean": 0.5, "low": 0.0, "high": 1.0, "n": 2}
    summary = [row | {"attack": "honest", "rejected": 1}, row | {"attack": "text", "rejected": 1}]
    before = {"honest_p_values": {"mine": [1.0, 1.0]}, "p_values": {"mine": {"text": [0.0, 0.4]}}}
    shown = _detection(summary=summary, **before)
    assert "svg" not in [tag for tag, _ in shown.tags]
    assert "No curve for mine: no threshold of the p-values rejects what the table" in shown.text


def test_rules_without_a_curve_are_listed() -> None:
    shown = _detection(
        honest_p_values={"rules": [1.0, 1.0], "model": [0.3, 0.9]},
        p_values={"rules": {"text": [0.0]}, "model": {"text": [0.01]}},
    )
    assert "No curve for rules: rules that answer yes or no have no threshold." in shown.text
