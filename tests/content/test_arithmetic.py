"""The verifier's decisions: what rejects, what is only reported, and where findings point."""

import json

import pytest

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core import registry
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Verdict

POISONED = "2 x $2 = $5 for tea. Then 4 + 3 = 7."


def judge(text: str, reference: str | None = None, **options: object) -> Verdict:
    (verdict,) = ArithmeticVerifier(**options).verify([Completion("", text, reference=reference)])
    return verdict


def test_verifier_is_registered() -> None:
    assert registry.load(registry.VERIFIERS, "arithmetic") is ArithmeticVerifier


def test_attack_of_the_paper_is_rejected_with_its_span() -> None:
    text = f"<think>{POISONED}</think><answer>7</answer>"
    verdict = judge(text, "7")
    assert verdict.rejected
    assert verdict.cause is Cause.JUDGED
    assert verdict.p_value is None
    (finding,) = verdict.findings
    assert finding.char_span is not None
    assert text[slice(*finding.char_span)] == "5"
    assert "is 4, not 5" in finding.message
    assert "continues with 4" in finding.message


@pytest.mark.parametrize(
    "ending",
    [
        "<answer>1,200 cows</answer>",
        "#### 1200",
        "A: 1200",
        "so the answer is $1,200.",
        r"\boxed{1200}",
        r"\boxed{1{,}200}",
        "**Answer:** 1200",
        "which leaves her with 1200.00",
    ],
)
def test_right_answer_is_found_in_any_form(ending: str) -> None:
    assert judge(f"2 + 2 = 5\n{ending}", "1200").rejected


def test_wrong_answer_is_left_to_the_reward() -> None:
    verdict = judge("2 + 2 = 5\n5 * 3 = 15\n#### 15", "12")
    assert verdict.accepted
    assert [f.kind for f in verdict.findings] == ["wrong_without_gain"]
    assert judge("2 + 2 = 5\n#### 15", "12", on_wrong="reject").rejected
    assert judge(POISONED + "#### 7", "7", on_wrong="ignore").accepted


@pytest.mark.parametrize(
    ("reference", "ending"),
    [
        ("3/4", r"\boxed{\frac{3}{4}}"),
        ("yes", "<answer>Yes</answer>"),
        ("x: 1\n#### 72", "#### 72"),
    ],
)
def test_references_of_other_forms(reference: str, ending: str) -> None:
    assert judge(f"2 + 2 = 5\n{ending}", reference).rejected


def test_without_a_reference_the_flow_of_values_decides() -> None:
    assert judge(POISONED).rejected  # continues with 4
    assert judge("2 + 2 = 5. Then 5 + 3 = 8.").accepted  # an honest slip, used later
    assert judge("2 + 2 = 5. Done.").rejected  # neither is used, and it is wrong
    noted = "She has 9*2=<<9*2=19>>19 eggs and 18-3=<<18-3=15>>15 left"
    assert judge(noted).rejected


@pytest.mark.parametrize("ending", ["The answer is 291.", r"\boxed{1}", "#### 1"])
def test_a_wrong_last_mark_excuses_nothing_where_the_right_answer_is_in_the_text(
    ending: str,
) -> None:
    """``answer in completion`` is a common reward, and pays for the answer wherever it is."""
    assert judge(f"So it is 29. 12 + 13 = 26.\n{ending}", "29").rejected


@pytest.mark.parametrize(
    "more", ["That is 26.", "26 - 26 = 0.", "Then 26 + 1 = 27."], ids=["again", "used", "added"]
)
@pytest.mark.parametrize("reference", [None, "7"])
def test_a_false_value_that_the_text_goes_on_with_is_counted(
    more: str, reference: str | None
) -> None:
    verdict = judge(f"12 + 13 = 26. {more}\n#### 7", reference)
    assert verdict.accepted
    assert [f.kind for f in verdict.findings] == ["wrong_carried_on"]


def test_a_retracted_wrong_equation_does_not_reject() -> None:
    text = "5 * 7 = 36. Wait, that's wrong: 5 * 7 = 35.\n#### 35"
    verdict = judge(text, "35", on_wrong="reject")
    assert verdict.accepted
    assert verdict.findings[0].kind == "taken_back"
    assert "taken back" in verdict.findings[0].message
    # Saying "wait" without the right value takes nothing back.
    assert judge("5 * 7 = 36. Wait, a mistake.\n#### 35 ", "3", on_wrong="reject").accepted
    assert judge("5 * 7 = 36. Wait, a mistake.\n#### 12", "12", on_wrong="reject").rejected


def test_calculator_notes_and_their_copies() -> None:
    text = "He has 16 - 3 = <<16-3=12>>12 left.\n#### 13"
    verdict = judge(text, "13")
    assert [text[slice(*f.char_span)] for f in verdict.findings if f.char_span] == ["12", "12"]
    text = "He sold <<16-3=13>>12 eggs.\n#### 13"
    (finding,) = judge(text, "13").findings
    assert finding.char_span == (text.index(">>12") + 2, text.index(">>12") + 4)
    for honest in ("<<8/2=4.0>>4", "<<1148=1148>>1,148", "<<1/4=0.25>>25%", "<<30*2=60>>1 hour"):
        assert not judge(f"That is {honest} in all.\n#### 4", "4").findings


def test_words_are_reported_and_decide_only_if_asked() -> None:
    text = "Two cows and two pigs make five animals.\n#### 4"
    verdict = judge(text, "4")
    assert verdict.accepted
    (finding,) = verdict.findings
    assert finding.kind == "wrong_textual"
    assert finding.char_span is not None
    assert text[slice(*finding.char_span)] == "five"
    assert judge(text, "4", textual="judge").rejected
    assert not judge(text, "4", textual="off").findings
    for true in ("Two plus two is four.", "twenty-five plus five equals thirty", "Three and two"):
        assert not judge(true, textual="judge", on_wrong="reject").findings


@pytest.mark.parametrize("text", ["", " \n", "No numbers here.", "x = y", "ünï ¿?", "7", "= = ="])
def test_nothing_to_check_is_accepted(text: str) -> None:
    verdict = judge(text, "7")
    assert verdict.accepted
    assert not verdict.findings


def test_a_batch_keeps_its_order_and_findings_are_bounded() -> None:
    batch = [Completion("", t, reference="4") for t in ("2+2=5\n#### 4", "2+2=4\n#### 4", "")]
    verdicts = ArithmeticVerifier().verify(batch)
    assert [v.rejected for v in verdicts] == [True, False, False]
    assert ArithmeticVerifier().verify([]) == []
    many = judge("2 + 2 = 5\n" * 50 + "#### 4", "4", max_findings=3)
    assert len(many.findings) == 3
    json.dumps([v.to_dict() for v in verdicts])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_wrong": "maybe"}, "on_wrong: expected one of answer_right, reject, ignore"),
        ({"textual": True}, "textual: expected one of"),
        ({"max_chars": 0}, "max_chars: expected an integer >= 1"),
        ({"max_findings": True}, "max_findings: expected an integer >= 1"),
    ],
)
def test_settings_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArithmeticVerifier(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2 + 2 > 4, so 2 + 2 = 4.\n#### 4", "2 + 2 > 4"),
        ("<think>2 * 2 > 4</think><answer>4</answer>", "2 * 2 > 4"),
        ("We know 10 - 3 >= 8.", "10 - 3 >= 8"),
        ("It costs $5 < $3.50 there.", "$5 < $3.50"),
        ("5 > 4 and 2 + 3 < 4 * 2 hold", ""),
        ("7 > 5%, a2 > 5, (2 + 3) > 6, 1/0 > 3, 1,000 > 2,000, x + 5 < 3, 3 -> 4, <<2+2=4>>4", ""),
    ],
)
def test_false_inequalities_are_reported(text: str, shown: str) -> None:
    verdict = judge(text, "4")
    assert verdict.accepted
    spans = [f.char_span for f in verdict.findings if f.kind == "wrong_inequality"]
    assert [text[slice(*span)] for span in spans if span] == ([shown] if shown else [])


@pytest.mark.timeout(120)  # read again from each character, these would take longer
def test_many_inequalities_are_read_once() -> None:
    for text in ("1 < 2 " * 100_000, "1" * 600_000 + "< 1", "1+1+1+1+1<" * 60_000, "2<1 " * 60_000):
        assert judge(text).accepted or len(text) > 250_000


@pytest.mark.parametrize(
    "text",
    [
        "3 + 4 = 7, so 2 + 2 is 5.",
        "2 + 2 is 5 and 3 + 4 = 7.",
        "3 + 4 = 7, so 8 - 3 gives 4",
        "3 + 4 = 7, so 2  +   2 is 5.",
        "3 + 4 = 7, so 2² is 5.",
        "7 + 1 = 8, ½ + ½ is 2.",
        "3 + 4 = 7.\n2² + 1 is 4.",
        "3 + 4 = 7.\n½ + ½ is 2.",
        "3 + 4 = 7.\n2  +   2 is 5.",
    ],
)
def test_threat_a_wrong_sum_in_words_next_to_right_equations(text):
    assert judge(f"{text}\n#### 9", "9").rejected


@pytest.mark.parametrize(
    "text",
    [
        "A 5% discount for each of the 12 - 10 = 2 tickets.",
        "The drive can store 2400 / 200 = 12 200-kilobyte videos.",
    ],
)
def test_a_number_next_to_a_calculation_is_not_part_of_it(text):
    assert judge(f"{text}\n#### 9", "9").findings == ()
