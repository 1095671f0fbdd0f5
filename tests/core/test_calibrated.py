"""Rules get p-values from honest completions, and a shared budget holds with them."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import AllOf, AnyOf, Cascade, Cause, CompletionVerifier
from grpo_guard.core.calibrated import (
    Calibrated,
    CalibrationFileError,
    HonestScores,
    read_calibration,
    write_calibration,
)
from grpo_guard.core.ensemble import Vote, only
from grpo_guard.core.verdict import accept, reject
from tests.core.rule_verifiers_core import Says, completions


class Scores(CompletionVerifier):
    """Reads its p-value from the text and rejects below its own level."""

    name = "scores"

    def verify(self, batch):
        kinds = [reject if float(c.text) <= 0.05 else accept for c in batch]
        return [k("scores", p_value=float(c.text)) for k, c in zip(kinds, batch, strict=True)]


def test_rule_gets_the_p_value_its_honest_rejections_allow():
    verifier = Calibrated.on(Says(), completions(*"aaaarraaa?"))
    assert (verifier.honest.completions, verifier.honest.rejected) == (9, 2)
    assert verifier.honest.abstained == 1
    verdicts = verifier.verify(completions("a", "r", "?", "m"))
    assert [v.p_value for v in verdicts] == [1.0, 0.3, None, 0.3]
    assert [v.outcome.value for v in verdicts] == ["accept", "reject", "abstain", "reject"]
    assert verifier.name == "says"


def test_rule_without_honest_rejections_gets_the_smallest_p_value():
    verifier = Calibrated.on(Says(), completions(*"a" * 99))
    assert verifier.verify(completions("r"))[0].p_value == verifier.smallest_p == 0.01


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=60),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_conformal_p_values_are_ranks_among_honest_completions(honest, given):
    verifier = Calibrated.on(Scores(), completions(*map(repr, honest)))
    for score, verdict in zip(given, verifier.verify(completions(*map(repr, given))), strict=True):
        rank = (1 + sum(h <= score for h in honest)) / (len(honest) + 1)
        assert verdict.p_value == pytest.approx(1.0 if score == 1 else rank)


def test_p_values_hold_on_new_honest_completions():
    rng, level, rejected = random.Random(2), 0.1, 0
    for _ in range(400):
        # A badly calibrated verifier: its own p-values are far too small.
        honest = [repr(rng.random() ** 4) for _ in range(51)]
        verifier = Calibrated.on(Scores(), completions(*honest[1:]), alpha=level)
        rejected += verifier.verify(completions(honest[0]))[0].rejected
    assert rejected / 400 <= level + 4 * (level * (1 - level) / 400) ** 0.5
    assert rejected > 0


def test_level_replaces_the_verifiers_own_threshold():
    verifier = Calibrated.on(Scores(), completions(*["0.01"] * 10 + ["0.5"] * 89), alpha=0.05)
    verdicts = verifier.verify(completions("0.02", "0.005"))
    assert [v.outcome.value for v in verdicts] == ["accept", "reject"]
    with pytest.raises(
        ValueError, match=r"Calibrated\.alpha: expected at least 0\.01, the smallest"
    ):
        Calibrated(Scores(), verifier.honest, alpha=0.001)


def test_malformed_completions_are_rejected_at_any_level():
    verifier = Calibrated.on(Says(), completions(*"a" * 50, "m"), alpha=0.05)
    (verdict,) = verifier.verify(completions("m"))
    assert verdict.rejected
    assert verdict.cause is Cause.MALFORMED


def test_members_share_one_budget():
    a, b = Says("a", at=0, p_value=0.004), Says("b", at=1, p_value=0.5)
    assert AllOf(a, b).verify(completions("ra"))[0].rejected
    (spared,) = AllOf(a, b, alpha=0.006).verify(completions("ra"))  # 0.004 > 0.003
    assert spared.accepted
    assert spared.p_value == pytest.approx(0.008)
    (favoured,) = AllOf(a, b, alpha=0.006, shares=[3, 1]).verify(completions("ra"))
    assert favoured.rejected
    (stricter,) = AllOf(a, b, alpha=0.01).verify(completions("aa"))
    assert stricter.rejected
    assert stricter.findings[0].kind == "small_p_value"


def test_budget_does_not_overrule_a_rule_without_p_values():
    rule, test = Says("rule", at=0), Says("test", at=1, p_value=0.5)
    (verdict,) = AllOf(rule, test, alpha=0.01).verify(completions("ra"))
    assert verdict.rejected
    assert verdict.p_value is None
    nested = AllOf(Cascade(rule, test), Says("other", at=1, p_value=0.9), alpha=0.01)
    assert nested.verify(completions("ra"))[0].rejected
    assert nested.verify(completions("aa"))[0].accepted


def test_cascade_passes_acquitted_completions_to_later_members():
    first, second = Says("a", p_value=0.02), Says("b", p_value=0.5)
    chain = Cascade(first, second, alpha=0.01)
    assert chain.verify(completions("r"))[0].members[1].verifier == "b"
    assert second.batches == [["r"]]


def test_member_that_could_never_reject_is_refused():
    rule = Calibrated.on(Says("rule"), completions(*"a" * 100))
    with pytest.raises(ValueError, match=r"expected rule's share, 0\.0005, to be at least"):
        AllOf(rule, Says("b"), alpha=0.001)
    assert AllOf(rule, Says("b"), alpha=0.1).verify(completions("r"))[0].rejected


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rule: only(rule, task="code"),
        lambda rule: only(only(rule, task="code"), node="n"),
        lambda rule: AllOf(rule, Says("p", at=1, p_value=0.5)),
        lambda rule: Cascade(Says("p", at=1, p_value=0.5), rule),
        lambda rule: Vote(rule, rejects=1),
        lambda rule: AnyOf(rule, Says("p", at=1, p_value=0.001)),
    ],
)
def test_nested_member_that_could_never_reject_is_refused(wrap):
    # Its p-value is at least 1 / 101, above its share: every rejection of it would be acquitted.
    rule = Calibrated.on(Says("rule"), completions(*"a" * 100))
    with pytest.raises(ValueError, match=r"rule.*share, 0\.000\d+, to be at least its smallest"):
        AllOf(wrap(rule), Says("b"), alpha=0.001)


def test_member_that_rejects_too_much_honest_work_is_refused():
    rule = Calibrated.on(Says("rule"), completions(*"a" * 990, *"r" * 10))
    assert rule.smallest_p == pytest.approx(11 / 1001)
    with pytest.raises(ValueError, match=r"share, 0\.005, to be at least"):
        AllOf(rule, Says("b"), alpha=0.01)


@given(st.integers(0, 3), st.integers(20, 60), st.sampled_from([0.1, 0.3, 0.6]), st.integers(1, 3))
def test_budget_never_acquits_every_rejection_of_a_rule(honest_rejected, n, alpha, depth):
    """Any ensemble that can be built rejects whenever its rule does."""
    verifier = Calibrated.on(Says("rule", at=0), completions(*"a" * n, *"r" * honest_rejected))
    try:
        for _ in range(depth):
            verifier = AllOf(verifier, Says("other", at=1, p_value=1.0))
        guard = AllOf(Cascade(verifier), alpha=alpha)
    except ValueError:
        return
    assert guard.verify(completions("ra"))[0].rejected


def test_budget_is_kept_in_a_chain():
    strict = AllOf(Says("a"), Says("b"), alpha=0.01)
    assert (strict & Says("c")).members[0] is strict
    weighted = AllOf(Says("a"), Says("b"), shares=[1, 2])
    assert (weighted & Says("c")).members[0] is weighted


def test_scores_round_trip_through_a_file(tmp_path):
    honest = HonestScores.of(Scores().verify(completions("0.5", "0.01", "1.0")))
    write_calibration(tmp_path / "c.json", {"scores": honest})
    assert read_calibration(tmp_path / "c.json", "scores") == honest
    assert Calibrated(Scores(), tmp_path / "c.json").honest == honest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a calibration file"),
        ("[]", "expected format"),
        ('{"format": "grpo-guard calibration 1"}', "expected 'scores' among the verifiers"),
        ('{"format": "grpo-guard calibration 1", "verifiers": {"scores": 3}}', "scores: "),
        ("[" * 100_000, "expected a calibration file"),
    ],
)
def test_malformed_files_are_refused(tmp_path, text, problem):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CalibrationFileError, match=problem):
        Calibrated(Scores(), tmp_path / "c.json")


@pytest.mark.parametrize(
    "change",
    [{"scores": [0.5, 0.1]}, {"scores": [2.0]}, {"completions": 0}, {"rejected": 9}, {"more": 1}],
)
def test_files_with_inconsistent_counts_are_refused(tmp_path, change):
    fields = {"completions": 3, "rejected": 1, "abstained": 0, "scores": [0.1]} | change
    data = {"format": "grpo-guard calibration 1", "verifiers": {"scores": fields}}
    (tmp_path / "c.json").write_text(json.dumps(data))
    with pytest.raises(CalibrationFileError, match="scores: "):
        Calibrated(Scores(), tmp_path / "c.json")


def test_calibration_without_judged_completions_is_refused():
    with pytest.raises(ValueError, match="expected at least 1 judged, got 0"):
        Calibrated.on(Says(), completions("?", "?"))
