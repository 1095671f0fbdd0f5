import json
import re
from itertools import product

import numpy as np
import pytest

from grpo_guard import (
    Cause,
    Completion,
    CompletionVerifier,
    Finding,
    Outcome,
    Verdict,
    presets,
)
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import abstain, accept, reject

AUTHOR = {
    Cause.SCREENED,
    Cause.MALFORMED,
    Cause.REFUSED,
    Cause.OVERLONG,
    Cause.UNAUTHENTICATED,
    Cause.FALSE_REFERENCE,
    Cause.LATE,
}


@pytest.mark.parametrize(("outcome", "cause"), product(Outcome, Cause))
def test_outcome_and_cause_must_match(outcome, cause):
    """What the author can cause rejects, what it cannot abstains; only evidence may accept."""
    if cause is Cause.JUDGED:
        fits = outcome is not Outcome.ABSTAIN
    else:
        fits = outcome is (Outcome.REJECT if cause in AUTHOR else Outcome.ABSTAIN)
    if fits:
        verdict = Verdict(outcome, cause, "v")
        assert [verdict.accepted, verdict.rejected, verdict.abstained].count(True) == 1
    else:
        with pytest.raises(ValueError, match=rf"Verdict\.outcome: cause '{cause.value}' expects"):
            Verdict(outcome, cause, "v")


@pytest.mark.parametrize("verdict", [accept("v"), reject("v"), abstain("v", Cause.FAULT)])
def test_verdict_is_no_condition(verdict):
    with pytest.raises(TypeError, match=r"expected \.accepted, \.rejected or \.abstained"):
        bool(verdict)


def test_plain_acceptances_share_one_object():
    assert accept("x") is accept("x") is accept("x", findings=())
    assert accept("x") is not accept("y")
    found = (Finding("kind", "message"),)
    for more in ({"p_value": 0.0}, {"p_value": np.float64(0.5)}, {"findings": found}):
        assert accept("x", **more) == Verdict(Outcome.ACCEPT, Cause.JUDGED, "x", **more)
        assert accept("x", **more) != accept("x")


@pytest.mark.parametrize("p_value", [-0.1, 1.1, float("nan")])
def test_p_values_are_probabilities(p_value):
    with pytest.raises(ValueError, match=r"Verdict\.p_value: expected a number in \[0, 1\]"):
        accept("v", p_value=p_value)


def test_message_becomes_the_first_finding():
    detail = Finding("outside_support", "token 3", token_span=(3, 4), char_span=(7, 9))
    verdict = reject("v", Cause.OVERLONG, "too long", findings=(detail,), p_value=0.0)
    assert verdict.reason == "too long"
    assert verdict.findings == (Finding("overlong", "too long"), detail)
    assert abstain("v", Cause.TIMEOUT).reason == "timeout"
    assert reject("v").cause is Cause.JUDGED


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"findings": "mentions acme"}, "got 'mentions acme'; write message='mentions acme', or"),
        ({"findings": ["mentions acme"]}, "got 'mentions acme'; write message="),
        ({"findings": Finding("brand", "acme")}, r"got Finding; write findings=\(finding,\)"),
        ({"findings": 3, "message": "acme"}, "expected several Finding objects, got 3"),
        ({"reason": "acme"}, "reject: expected .*got 'reason'; put explanations into message"),
    ],
)
def test_mistaken_findings_are_explained(fields, message):
    with pytest.raises(TypeError, match=message):
        reject("brands", **fields)
    found = [Finding("brand", "acme")]
    assert reject("brands", findings=iter(found)).findings == tuple(found)


@pytest.mark.parametrize("field", ["char_span", "token_span"])
@pytest.mark.parametrize(
    ("given", "error", "got"),
    [
        (5, TypeError, "5"),
        ("ab", TypeError, "'ab'"),
        ((1.0, 2), TypeError, "(1.0, 2)"),
        ((True, 2), TypeError, "(True, 2)"),
        ((1, None), TypeError, "(1, None)"),
        ((1, 2, 3), TypeError, "tuple"),
        ((5, 2), ValueError, "(5, 2)"),
        ((-1, 2), ValueError, "(-1, 2)"),
    ],
)
def test_spans_are_checked_where_they_are_made(field, given, error, got):
    expected = f"Finding.{field}: expected (start, end) with 0 <= start <= end, got {got}"
    with pytest.raises(error, match=f"^{re.escape(expected)}$"):
        Finding("odd", "strange", **{field: given})


def test_verifier_with_a_wrong_span_abstains_and_is_named():
    class Odd(CompletionVerifier):
        name = "odd"

        def verify(self, batch):
            return [reject(self.name, findings=[Finding("k", "m", char_span=5)]) for _ in batch]

    (verdict,) = supervised(Odd(), [Completion("p", "Yes.")])
    assert (verdict.outcome, verdict.verifier) == (Outcome.ABSTAIN, "odd")
    assert "Finding.char_span: expected (start, end)" in verdict.reason


@pytest.mark.parametrize("given", [[2, 5], (np.int64(2), np.int32(5)), (2, 5)])
def test_spans_become_pairs_of_python_integers(given):
    finding = Finding("odd", "strange", char_span=given, token_span=given)
    assert finding == Finding("odd", "strange", (2, 5), (2, 5))
    assert json.loads(json.dumps(finding.to_dict()))["token_span"] == [2, 5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p_value": "0.5"}, "Verdict.p_value: expected a number, got '0.5'"),
        ({"p_value": True}, "Verdict.p_value: expected a number, got True"),
        (
            {"p_value": np.zeros(1)},
            r"Verdict.p_value: expected a number, got ndarray of shape \[1\]",
        ),
        ({"seconds": "1"}, "Verdict.seconds: expected a number, got '1'"),
        ({"usage": 5}, "Verdict.usage: expected a Usage, got 5"),
        ({"members": [5]}, "Verdict.members: expected a tuple of Verdict, got 5"),
        ({"members": accept("m")}, "Verdict.members: expected a tuple of Verdict, got Verdict"),
        ({"message": 5}, "Finding.message: expected a str, got 5"),
    ],
)
def test_fields_of_other_types_are_explained(fields, message):
    with pytest.raises(TypeError, match=f"^{message}$"):
        reject("own", **fields)
    with pytest.raises(TypeError, match=r"^Finding\.kind: expected a str, got None$"):
        Finding(None, "strange")
    with pytest.raises(TypeError, match=r"^Verdict\.outcome: expected Outcome\.ACCEPT or another"):
        Verdict("reject", Cause.JUDGED, "own")


def test_numbers_become_python_floats():
    verdict = reject("own", p_value=np.float32(0.25), seconds=np.float32(2), members=[accept("m")])
    assert verdict == reject("own", p_value=0.25, seconds=2.0, members=(accept("m"),))
    assert json.loads(json.dumps(verdict.to_dict()))["p_value"] == 0.25


def test_json_form_has_the_documented_fields():
    member = abstain("inner", Cause.TIMEOUT, "no answer", seconds=0.5)
    finding = Finding("kind", "message", char_span=(0, 0), token_span=(1, 2))
    verdict = reject("outer", findings=(finding,), p_value=0.25, members=(member,))
    data = json.loads(json.dumps(verdict.to_dict()))
    assert data == {
        "outcome": "reject",
        "cause": "judged",
        "p_value": 0.25,
        "findings": [
            {"kind": "kind", "message": "message", "char_span": [0, 0], "token_span": [1, 2]}
        ],
        "verifier": "outer",
        "seconds": 0.0,
        "members": [member.to_dict()],
    }


def test_rejection_without_findings_names_the_rejecting_member():
    class Shouting(CompletionVerifier):
        name = "shouting"

        def verify(self, batch):
            return [reject(self.name) for _ in batch]

    guard = presets.different_weights(beside=[Shouting()])
    (verdict,) = guard.review([Completion("p", "t", node="a")]).verdicts
    assert (verdict.verifier, verdict.deciding) == ("different_weights", ("shouting",))
    assert verdict.reason == "rejected by shouting"
    assert reject("alone").reason == "rejected by alone"
    assert (abstain("v", Cause.TIMEOUT).reason, accept("v").reason) == ("timeout", "judged")


def test_printed_verdict_is_one_short_line():
    inner = reject("screens", message="says 'Hail'\nto \x1b[2J the thief")
    stack = Verdict(
        Outcome.REJECT, Cause.JUDGED, "stack", findings=inner.findings, members=(inner,)
    )
    assert str(accept("stack", members=(accept("screens"),))) == "accept (stack)"
    assert str(reject("shouting")) == "reject (shouting): rejected by shouting"
    assert str(stack) == r"reject (screens): says 'Hail' to \x1b[2J the thief"
    assert str(abstain("judge", Cause.TIMEOUT)) == "abstain (judge): timeout"
    assert len(str(reject("screens", message="x" * 10_000))) == 300
    assert repr(stack).startswith("Verdict(outcome=")
