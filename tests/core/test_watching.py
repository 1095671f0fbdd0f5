"""`Policy(on_reject="keep")`: a watching guard changes no reward and stops no run."""

import math
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import AbstainError, Completion, Guard, Policy, presets
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.guard.graders import GraderFailures
from grpo_guard.guard.settlement import Ruling, settle
from grpo_guard.nodes.ledger import EvidenceLedger
from tests.core.rule_verifiers_core import Says, completions

WATCH = Policy(on_reject="keep")
REWARDS = [1.5, math.nan, math.inf, None, -2, 0.0, 1e300, True]
TEXTS = "ar?ar?r?"


def same(found, given):
    return len(found) == len(given) and all(x is y for x, y in zip(found, given, strict=True))


@pytest.mark.parametrize(
    "policy",
    [
        WATCH,
        Policy("keep", "skip"),
        Policy("keep", "zero"),
        Policy("keep", ("skip", "zero")),
        Policy("keep", "pass"),
        Policy("keep", on_long="scale"),
        Policy("keep", "zero", "scale", max_abstain_rate=0.0, abstain_window=1),
    ],
)
@pytest.mark.parametrize("failures", [None, GraderFailures()])
def test_rewards_are_the_identical_objects(policy, failures):
    guard = Guard(Says(), policy=policy, length_scaling=LengthScaling(), failures=failures)
    for _ in range(3):
        assert same(guard.apply(REWARDS, completions(*TEXTS)), REWARDS)


@pytest.mark.parametrize("odd", [[Decimal(1)], ["1"], [[1.0, 2.0]], [object()], torch.ones(1, 3)])
def test_rewards_of_any_type_are_kept(odd):
    found = Guard(Says(), policy=WATCH).apply(odd, completions("r"))
    assert repr(found) == repr(list(odd))


def test_verdicts_metrics_and_ledger_still_work(tmp_path):
    book = EvidenceLedger(tmp_path / "book.sqlite")
    guard = Guard(Says(), policy=WATCH, ledger=book)
    batch = [Completion("p", text, node=f"n{i}") for i, text in enumerate("arr?")]
    review = guard.review(batch)
    assert [v.outcome.value for v in review.verdicts] == ["accept", "reject", "reject", "abstain"]
    assert review.metrics["guard/reject_rate"] == 0.5
    assert review.metrics["guard/abstain_rate"] == 0.25
    assert review.metrics["guard/node/n1/reject"] == 1.0
    assert review.length_factors is None
    assert {row.node: row.rejected for row in book.standings()}["n1"] == 1


def test_excluded_node_keeps_its_rewards():
    settled = settle([[1.0], [2.0]], [Ruling.BARRED, Ruling.ACCEPTED], WATCH)
    assert settled.rewards == [[1.0], [2.0]]
    assert settled.kept == [True, True]
    assert settled.reasons == ["watched", "earned"]


@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), st.floats()), st.sampled_from(Ruling), st.floats(0, 1)),
        max_size=8,
    ),
    weight=st.floats(-2, 2),
)
def test_keep_settles_to_the_given_rewards(rows, weight):
    given_rewards = [[reward, 1] for reward, _, _ in rows]
    settled = settle(
        given_rewards,
        [ruling for _, ruling, _ in rows],
        WATCH,
        weights=[weight, 1.0],
        length_factors=[factor for *_, factor in rows],
    )
    assert all(settled.kept)
    for found, row in zip(settled.rewards, given_rewards, strict=True):
        assert same(found, row)


def test_abstentions_raise_only_on_request():
    quiet = Guard(Says(), policy=Policy("keep", abstain_window=1, max_abstain_rate=0))
    assert quiet.apply([1.0], completions("?")) == [1.0]
    asked = Guard(Says(), policy=Policy("keep", "raise"))
    assert asked.apply([1.0, 2.0], completions("a", "r")) == [1.0, 2.0]
    with pytest.raises(AbstainError, match="says abstained"):
        asked.apply([1.0], completions("?"))


class FullDisk:
    def record(self, batch, verdicts):
        raise OSError("no space left on device")


def test_failing_guard_does_not_stop_a_watched_run(caplog):
    guard = Guard(Says(), policy=WATCH, ledger=FullDisk())
    review = guard.review(completions("a", "r"))
    assert [(v.outcome.value, v.cause) for v in review.verdicts] == [("abstain", Cause.FAULT)] * 2
    assert guard.settle([1.0, 2.0], review) == [1.0, 2.0]
    assert "no space left" in caplog.text
    with pytest.raises(OSError, match="no space"):
        Guard(Says(), ledger=FullDisk()).review(completions("a"))


@pytest.mark.parametrize("rules", [("keep", "zero"), ("drop", "keep"), ["keep", -1.0]])
def test_keep_cannot_be_combined_with_enforcement(rules):
    with pytest.raises(ValueError, match="expected 'keep' alone"):
        Policy(on_reject=rules)


def test_other_settings_apply_once_enforcing():
    from dataclasses import replace

    watching = Policy("keep", ("skip", "zero"), "scale", max_abstain_rate=0.1)
    assert watching.chosen() == Policy("keep", "pass", "keep", max_abstain_rate=0.1)
    assert not watching.leaves_out
    deciding = replace(watching, on_reject="drop")
    assert deciding.rules("on_abstain") == ("skip", "zero")
    assert deciding.rules("on_long") == ("scale",)
    assert deciding.max_abstain_rate == 0.1


def test_pass_is_allowed_when_watching():
    class Moody(Says):
        author_can_abstain = "it asks nicely"

    with pytest.raises(ValueError, match="'pass' would pay"):
        Guard(Moody(), policy=Policy("zero", "pass"))
    assert Guard(Moody(), policy=WATCH).apply([3.0], completions("?")) == [3.0]


@pytest.mark.parametrize("preset", ["different_weights", "failures_only"])
def test_preset_can_watch(preset):
    guard = getattr(presets, preset)(policy=WATCH)
    batch = [Completion("3+4?", "It is 7.", finish_reason="length")]
    assert same(guard.apply([math.nan], batch), [math.nan]) or math.isnan(
        guard.apply([math.nan], batch)[0]
    )


def test_given_verdicts_are_not_enforced_when_watching():
    guard = Guard(Says(), policy=WATCH)
    verdicts = [reject("x"), abstain("x", Cause.TIMEOUT), accept("x")]
    assert guard.apply([1.0, 2.0, 3.0], completions("a", "a", "a"), verdicts) == [1.0, 2.0, 3.0]
