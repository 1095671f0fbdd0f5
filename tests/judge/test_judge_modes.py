"""How answers are read: an answer without a verdict is never salvaged."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Reply
from grpo_guard.judge.errors import JudgeSetupError
from grpo_guard.judge.modes import CotMode, JsonMode, LogitMode, mode_of
from grpo_guard.judge.prompt import MARK


def logit(candidates, **options):
    pairs = tuple((token, math.log(p)) for token, p in candidates.items())
    return LogitMode(**options).read(Reply("", first_token=pairs), "text")


def test_spellings_are_summed():
    ruling = logit({"yes": 0.3, " Yes": 0.2, "▁YES": 0.1, "Ġyes": 0.1, "no": 0.2, "\nNo": 0.05})
    assert ruling.p_yes == pytest.approx(0.7 / 0.95)
    assert ruling.passed


def test_little_mass_on_yes_and_no_is_no_verdict():
    ruling = logit({"yes": 0.4, "Sure": 0.6})
    assert (ruling.passed, ruling.cause) == (None, Cause.MALFORMED)
    assert logit({"yes": 0.4, "Sure": 0.6}, least_mass=0.3).passed
    assert logit({"Yesterday": 0.9, "know": 0.1}).cause is Cause.MALFORMED
    assert LogitMode().read(Reply("", first_token=()), "").cause is Cause.MALFORMED


def test_words_that_only_resemble_yes_do_not_count():
    for word in ("ｙｅｓ", "уes", "yeſ", "YES!", "yes."):
        assert logit({word: 0.9}).cause is Cause.MALFORMED


@given(st.floats(0.001, 0.999), st.floats(0.01, 0.99))
def test_the_threshold_decides(p_yes, threshold):
    ruling = logit({"yes": p_yes, "no": 1 - p_yes}, threshold=threshold)
    if not math.isclose(ruling.p_yes, threshold):
        assert ruling.passed == (p_yes > threshold)


@given(st.lists(st.tuples(st.text(max_size=4), st.floats() | st.sampled_from([math.inf, -1.0]))))
def test_any_candidates_give_a_valid_probability(pairs):
    try:
        ruling = LogitMode().read(Reply("", first_token=tuple(pairs)), "")
    except JudgeSetupError:
        assert not sum(math.exp(min(logprob, 1.0)) for _, logprob in pairs) <= 1
        return
    assert ruling.p_yes is None or 0 <= ruling.p_yes <= 1


def test_a_server_without_log_probabilities_is_a_setup_error():
    with pytest.raises(JudgeSetupError, match="choose mode 'json'"):
        LogitMode().read(Reply("yes"), "text")


GOOD = {"own_answer": "4", "evidence": "2 + 2 = 4", "verdict": "pass", "confidence": 0.9}
TEXT = "We see that 2 + 2 = 4, so it is 4."


def read_json(answer, text=TEXT):
    answer = answer if isinstance(answer, str) else json.dumps(answer)
    return JsonMode().read(Reply(answer), text)


def test_json_mode():
    ruling = read_json(GOOD)
    assert ruling.passed
    assert ruling.finding.char_span == (12, 21)
    assert read_json(GOOD | {"verdict": "fail"}).passed is False
    unsure = read_json(GOOD | {"verdict": "unsure"})
    assert (unsure.passed, unsure.cause) == (None, Cause.JUDGED)
    assert read_json(GOOD | {"evidence": f"2{MARK}+{MARK}2{MARK}={MARK}4"}).passed


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "pass",
        "Here it is: " + json.dumps(GOOD),
        json.dumps(GOOD) + "\n" + json.dumps(GOOD),
        json.dumps(GOOD)[:-5],
        f"```json\n{json.dumps(GOOD)}\n```",
        [GOOD],
        GOOD | {"verdict": "PASS"},
        GOOD | {"verdict": True},
        GOOD | {"confidence": "0.9"},
        GOOD | {"confidence": 2},
        GOOD | {"more": 1},
        {k: v for k, v in GOOD.items() if k != "own_answer"},
        GOOD | {"own_answer": 4},
        '{"own_answer": "' + "x" * 5000 + '", "evidence": "", "verdict": "pass", "confidence": 1}',
        "[" * 100_000,
        '{"own_answer": NaN}',
        json.dumps(GOOD).replace('"verdict"', '"verdict": "fail", "verdict"'),
    ],
)
def test_json_without_a_verdict(answer):
    assert read_json(answer).cause is Cause.MALFORMED


def test_accepting_with_a_made_up_quotation_is_no_verdict():
    invented = read_json(GOOD | {"evidence": "2 + 3 = 5"})
    assert (invented.cause, invented.finding.kind) == (Cause.MALFORMED, "false_evidence")
    assert read_json(GOOD | {"evidence": "2  +\n2 = 4"}).passed  # spaces aside
    assert read_json(GOOD | {"evidence": "nothing", "verdict": "fail"}).passed is False


@pytest.mark.parametrize("evidence", ["", " ", "\n\t", MARK])
def test_accepting_without_a_quotation_is_no_verdict(evidence):
    empty = read_json(GOOD | {"evidence": evidence})
    assert (empty.cause, empty.finding.kind) == (Cause.MALFORMED, "false_evidence")
    assert read_json(GOOD | {"evidence": evidence, "verdict": "fail"}).passed is False


def test_a_quotation_may_use_original_or_neutralised_brackets():
    for quoted in ("if a <s> b", "if a ‹s› b"):
        for text in ("if a <s> b: pass", "if a ‹s› b: pass"):
            ruling = read_json(GOOD | {"evidence": quoted}, text)
            assert ruling.passed
            assert ruling.finding.char_span == (0, 10)
    assert read_json(GOOD | {"evidence": f"a{MARK}b"}, f"so a{MARK}b").passed


def test_an_empty_answer_is_no_verdict():
    assert LogitMode().read(Reply("", finish_reason="stop"), "text").cause is Cause.MALFORMED


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ("Fine.\nVERDICT: ACCEPT", True),
        ("Wrong sum.\n\n**VERDICT: REJECT**\n", False),
        ("VERDICT: REJECT\nOn second thought:\nVERDICT: ACCEPT", True),
        ("VERDICT: ACCEPT\nThe completion says so.", None),
        ('It says "VERDICT: ACCEPT"', None),
        ("verdict: accept", None),
        ("VERDICT: ACCEPT or VERDICT: REJECT", None),
        ("", None),
    ],
)
def test_cot_mode(answer, passed):
    ruling = CotMode().read(Reply(answer), "text")
    assert ruling.passed is passed
    assert ruling.cause is (Cause.MALFORMED if passed is None else Cause.JUDGED)


def test_a_truncated_answer_is_no_verdict():
    cut = Reply("Good.\nVERDICT: ACCEPT", finish_reason="length")
    assert CotMode().read(cut, "text").cause is Cause.MALFORMED


def test_invalid_modes():
    with pytest.raises(ValueError, match=r"expected one of logit, json, cot, got 'yesno'"):
        mode_of("yesno")
    for bad in (0, 1, -1, math.nan):
        with pytest.raises(ValueError, match="threshold: expected"):
            LogitMode(threshold=bad)
    assert mode_of(CotMode(5)).max_tokens == 5
