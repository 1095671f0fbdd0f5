"""Settlement: what each policy does to rewards, of one function or of several."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import AbstainError, Policy
from grpo_guard.guard.settlement import Ruling, mean_of_kept, settle

ACCEPTED, REJECTED, BARRED, ABSTAINED = Ruling
POLICIES = [Policy(r, a) for r in ("zero", "drop", "no_gain") for a in ("skip", "zero")]
FINITE = st.sampled_from([-1.0, 0.0, 0.1, 1.0]) | st.floats(-5, 5)


@st.composite
def batches(draw, rewards=FINITE):
    """(rewards [n, k], rulings, groups, weights)"""
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rows = [[draw(rewards) for _ in range(k)] for _ in range(n)]
    rulings = draw(st.lists(st.sampled_from(list(Ruling)), min_size=n, max_size=n))
    groups = draw(st.lists(st.sampled_from("pq"), min_size=n, max_size=n))
    weights = draw(st.lists(st.sampled_from([1.0, 0.5, -1.0, 0.0]), min_size=k, max_size=k))
    return rows, rulings, groups, weights


def totals(rows, weights):
    """Sum as trainers do; None if every function returned None."""
    return [
        None
        if all(v is None for v in row)
        else math.fsum(w * v for w, v in zip(weights, row, strict=True) if v is not None)
        for row in rows
    ]


def advantages(values):
    """Unscaled advantages; 0 for rows outside the group."""
    kept = [v for v in values if v is not None]
    mean = math.fsum(kept) / len(kept) if kept else 0.0
    return [0.0 if v is None else v - mean for v in values]


def by_group(groups, values):
    for group in sorted(set(groups)):
        yield [v for v, g in zip(values, groups, strict=True) if g == group]


@given(batches(), st.sampled_from(POLICIES))
def test_rejected_rows_never_gain_over_being_left_out(batch, policy):
    rows, rulings, groups, weights = batch
    settled = settle(rows, rulings, policy, weights=weights, groups=groups)
    earned = totals(settled.rewards, weights)
    for of_group in by_group(groups, list(zip(earned, rulings, strict=True))):
        found = advantages([value for value, _ in of_group])
        for advantage, (_, ruling) in zip(found, of_group, strict=True):
            if ruling in (REJECTED, BARRED):
                assert advantage <= 1e-9


@given(batches(), st.sampled_from(["skip", "pass"]))
def test_drop_gives_the_advantages_of_the_group_without_rejected_rows(batch, rule):
    rows, rulings, groups, weights = batch
    settled = settle(rows, rulings, Policy("drop", rule), weights=weights, groups=groups)
    earned, raw = totals(settled.rewards, weights), totals(rows, weights)
    for kept, given_, said in zip(
        by_group(groups, earned), by_group(groups, raw), by_group(groups, rulings), strict=True
    ):
        stays = [r is ACCEPTED or (r is ABSTAINED and rule == "pass") for r in said]
        alone = advantages([v if stay else None for v, stay in zip(given_, stays, strict=True)])
        assert advantages(kept) == pytest.approx(alone, abs=1e-9)


ODD = st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | FINITE


@given(batches(ODD), st.sampled_from([*POLICIES, Policy(-0.5, "zero"), Policy(0.25, "pass")]))
def test_accepted_rewards_are_unchanged_and_vetoed_ones_are_finite(batch, policy):
    rows, rulings, groups, weights = batch
    settled = settle(rows, rulings, policy, weights=weights, groups=groups)
    assert len(settled.rewards) == len(settled.kept) == len(settled.reasons) == len(rows)
    for before, after, ruling, why, kept in zip(
        rows, settled.rewards, rulings, settled.reasons, settled.kept, strict=True
    ):
        if ruling is ACCEPTED:
            assert (repr(after), why, kept) == (repr(before), "earned", True)
        elif why in ("dropped", "skipped"):
            assert (after, kept) == ([None] * len(before), False)
        elif why in ("zeroed", "replaced"):
            assert all(v is None or math.isfinite(v) for v in after)
        else:
            assert repr(after) == repr(before)


@given(batches(ODD), st.sampled_from(POLICIES), st.randoms())
def test_order_of_completions_does_not_matter(batch, policy, rng):
    """Ranks settle the gathered rows of all, so the order of rows must not matter."""
    rows, rulings, groups, weights = batch
    order = list(range(len(rows)))
    rng.shuffle(order)
    settled = settle(rows, rulings, policy, weights=weights, groups=groups)
    shuffled = settle(
        [rows[i] for i in order],
        [rulings[i] for i in order],
        policy,
        weights=weights,
        groups=[groups[i] for i in order],
    )
    for group in set(groups):
        of_group = [i for i, g in enumerate(groups) if g == group]
        one = sorted(repr(settled.rewards[i]) for i in of_group)
        # As multisets: which of two equal rejected completions stays makes no difference.
        assert one == sorted(repr(shuffled.rewards[order.index(i)]) for i in of_group)


def test_numeric_policy_counts_once_across_functions():
    policy = Policy(on_reject=-3.0)
    rows = [[None, 5.0, 1.0, 1.0], [1.0, 5.0, 1.0, 1.0]]
    settled = settle(rows, [REJECTED, ACCEPTED], policy, weights=[1.0, 0.0, 1.0, 1.0])
    assert settled.rewards == [[None, 0.0, -3.0, 0.0], rows[1]]
    assert settled.reasons == ["replaced", "earned"]


def test_none_of_one_function_does_not_spare_a_vetoed_row():
    """An attack: a text that one of two functions cannot read, where wrong answers get -1."""
    rows = [[1.0, -1.0], [1.0, 1.0], [1.0, None]]
    settled = settle(rows, [ACCEPTED, ACCEPTED, REJECTED], Policy("zero"))
    assert settled.rewards[2] == [0.0, -1.0]
    assert settle([[1, 1], [1, None]], [ACCEPTED, REJECTED], Policy("zero")).rewards[1] == [0, None]


def test_length_scales_positive_rewards_only():
    settled = settle(
        [[1.0, -1.0], [2.0, 2.0]],
        [ACCEPTED, ACCEPTED],
        Policy(),
        weights=[1.0, -1.0],
        length_factors=[0.5, 0.25],
    )
    assert settled.rewards == [[0.5, -0.5], [0.5, 2.0]]  # weighed -1, a cost of -1 is a gain


@pytest.mark.parametrize(("on_reject", "of_long"), [("drop", None), ("no_gain", None), ("zero", 0)])
def test_right_answer_with_length_factor_0_is_not_unlearnt(on_reject, of_long):
    rewards, policy = [[1.0], [1.0], [-1.0]], Policy(on_reject=on_reject)
    settled = settle(rewards, [ACCEPTED] * 3, policy, length_factors=[1.0, 0.0, 0.0])
    assert settled.rewards == [[1.0], [of_long], [-1.0]]
    assert settled.kept == [True, of_long is not None, True]


def test_excluded_node_is_left_out_even_if_it_would_lose():
    settled = settle(
        [[1.0], [0.0], [0.0]], [ACCEPTED, REJECTED, BARRED], Policy(on_reject="no_gain")
    )
    assert settled.reasons == ["earned", "lost", "dropped"]
    assert settled.rewards == [[1.0], [0.0], [None]]


def test_no_gain_compares_weighted_sums():
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    rulings = [ACCEPTED, ACCEPTED, REJECTED, REJECTED]
    settled = settle(rows, rulings, Policy(on_reject="no_gain"), weights=[3.0, 1.0])
    assert settled.reasons == ["earned", "earned", "dropped", "lost"]


def test_losing_rows_do_not_raise_abstained_ones_above_the_mean():
    """An attack: a text that makes the guard abstain, next to a rejected one with a low reward."""
    rulings = [ACCEPTED, ACCEPTED, ABSTAINED, REJECTED]
    settled = settle([[1.0], [1.0], [1.0], [-5.0]], rulings, Policy("no_gain", "zero"))
    assert settled.rewards == [[1.0], [1.0], [-5.0], [-5.0]]


def test_raise_policy_raises_and_input_lengths_are_checked():
    with pytest.raises(AbstainError):
        settle([[1.0]], [ABSTAINED], Policy(on_abstain="raise"))
    with pytest.raises(ValueError, match="rewards: expected 2, one per completion, got 1"):
        settle([[1.0]], [ACCEPTED, ACCEPTED], Policy())
    with pytest.raises(ValueError, match="groups: expected 1, one per completion, got 2"):
        settle([[1.0]], [ACCEPTED], Policy(), groups=[0, 1])


@given(st.lists(FINITE, max_size=9))
def test_filling_left_out_rows_keeps_the_mean(kept):
    mean = mean_of_kept(kept, nothing=-1.0)
    assert mean == (pytest.approx(statistics.fmean(kept), abs=1e-12) if kept else -1.0)
    if kept:
        assert min(kept) <= mean <= max(kept)


def test_mean_of_rewards_whose_sum_overflows():
    """An attack: a subtracting grader and answers of 1e308 crashed all groups of a trainer."""
    assert mean_of_kept([-1.7e308] * 3) == -1.7e308
    assert mean_of_kept([1.7e308, 1.7e308, -1.7e308, -1.7e308]) == 0
