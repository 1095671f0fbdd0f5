"""The p-value of a replay: 1 for matches, small for forgeries, not too small for drift."""

import math
from itertools import pairwise

import numpy as np
import pytest

from grpo_guard.logprob.profile import BFLOAT16, FLOAT32, TEXT, DriftProfile
from grpo_guard.logprob.replay.evidence import weigh_replay
from grpo_guard.logprob.stats import TokenStats


def profile_of(name, *replay):
    return DriftProfile(
        name,
        rates=((0.25, 1e-3),),
        ulps=0.0,
        mass_margin=0.0,
        least_tail=1e-6,
        floor_tail=0.0,
        replay=replay,
    )


# The built-in profiles are re-measured from time to time; the results with these stay fixed.
TIGHT = profile_of("tight", (0.0, 4e-2), (0.1, 8e-3), (0.25, 1e-3), (0.5, 5e-5), (1.5, 1e-8))
# Rates so high that a few thousand completions show whether the p-value is valid.
LOOSE = profile_of("loose", (0.0, 0.2), (0.1, 0.05), (0.5, 0.01))
UNSURE, SURE = math.log(0.6), math.log(0.995)


def stats_of(margin, *, edge_gap=0.0, max_logprob=UNSURE):
    """Make statistics of the given number of tokens; a replay reads three of the columns."""
    zero = np.zeros(0 if margin is None else len(margin))
    columns = dict.fromkeys(TokenStats.__dataclass_fields__, zero)
    columns |= {
        "edge_gap": zero + edge_gap,
        "max_logprob": zero + max_logprob,
        "replay_margin": margin,
        "replay_token": zero.astype(np.int64),
    }
    return TokenStats(**columns)


def evidence_of(margins, n=200, profile=TIGHT, **columns):
    """Give n tokens these margins, the others 0."""
    margin = np.zeros(n)
    margin[: len(margins)] = margins
    return weigh_replay(stats_of(margin, **columns), profile)


def p_of(margins, n=200, profile=TIGHT, **columns):
    return evidence_of(margins, n, profile, **columns).p_value


@pytest.mark.parametrize("profile", [BFLOAT16, FLOAT32, LOOSE], ids=lambda p: p.name)
def test_full_match_has_a_p_value_of_1(profile):
    evidence = evidence_of([], profile=profile)
    assert evidence.p_value == 1
    assert evidence.mismatches == 0
    assert evidence.informative_matches == evidence.informative.sum() > 0


def test_p_value_falls_with_the_number_of_mismatches():
    p = [p_of([0.15] * k) for k in range(40)]
    assert all(a >= b for a, b in pairwise(p))
    assert p[1] > 0.1  # drift causes that
    assert p[-1] < 1e-12


def test_p_value_falls_with_the_size_of_a_margin():
    p = [p_of([m]) for m in (0.01, 0.05, 0.1, 0.2, 0.25, 0.6, 1.2, 3.0, math.inf)]
    assert all(a >= b for a, b in pairwise(p))
    assert p[0] == 1
    assert p[-1] < 1e-4


def test_one_forged_token_among_hundreds_decides():
    evidence = evidence_of([2.5], n=400)
    assert evidence.p_value < 1e-4
    assert evidence.threshold == 1.5  # the count of far margins, not the number of mismatches
    assert evidence.mismatches == 1


def test_many_small_margins_decide_like_few_large_ones():
    """Another temperature or other weights: each token is within drift, but too many are."""
    evidence = evidence_of([0.02] * 40)
    assert evidence.p_value < 1e-6
    assert evidence.threshold == 0


def test_other_seed_does_not_match():
    evidence = evidence_of(np.full(30, 3.0), n=30)
    assert evidence.p_value < 1e-30
    assert evidence.informative_matches == 0 < evidence.informative.sum()


def test_token_outside_the_support_never_counts_as_drawn():
    """Otherwise noise so high that no token of the support beats it would hide a forged token."""
    gaps = np.zeros(200)
    gaps[17] = 2.0
    evidence = evidence_of([], edge_gap=gaps)
    assert evidence.excess[17] == 2
    assert evidence.p_value == p_of([2.0])


def test_trivial_matches_do_not_hide_mismatches():
    """Copied boilerplate after a forged answer must not dilute its mismatches."""
    forged = [0.05] * 20
    alone = p_of(forged, n=40)
    padded = p_of(forged, n=1040, max_logprob=np.array([UNSURE] * 40 + [SURE] * 1000))
    assert padded == alone < 1e-6


def test_position_is_informative_if_the_policy_is_uncertain():
    sure = np.array([UNSURE, math.log(0.9899), math.log(0.9901), 0.0])
    evidence = evidence_of([], n=4, max_logprob=sure)
    assert evidence.informative.tolist() == [True, True, False, False]
    assert evidence.informative_matches == 2
    assert evidence.informative_matches == evidence.informative.sum() > 0


def test_confident_mismatch_counts_by_its_margin_only():
    """Counted as a missed match, it would enter both sides of the rate; a digit forged there has a
    margin that is decisive on its own."""
    evidence = evidence_of([0.0, 4.0], n=4, max_logprob=SURE)
    assert not evidence.informative.any()
    assert evidence.informative.sum() == 0
    assert evidence.p_value < 1e-3
    assert evidence.threshold > 0


def test_completion_without_informative_positions_passes():
    evidence = evidence_of([], n=4, max_logprob=SURE)
    assert evidence.informative.sum() == 0
    assert evidence.p_value == 1


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("n", [12, 150])
@pytest.mark.parametrize("profile", [BFLOAT16, FLOAT32, TIGHT, LOOSE], ids=lambda p: p.name)
def test_p_values_are_valid_under_the_profiles_drift(profile, n, share):
    """P(p < a) <= a: alpha bounds the rate of false alarms.

    A token's margin reaches each threshold exactly as often as the profile says: threshold 0 among
    informative positions, the others among all. Positions where the policy is confident match.
    """
    rng = np.random.default_rng(0)
    unsure = rng.random((4000, n)) < share
    thresholds, rates = map(np.array, zip(*profile.replay, strict=True))
    # P(margin >= m) of an unsure position, so that P(margin >= m) of any position is the rate.
    chances = np.concatenate([rates[:1], np.minimum(rates[0], rates[1:] / share)])
    level = (rng.random((4000, n, 1)) < chances).sum(-1)
    sizes = np.concatenate([[0.0], thresholds + 1e-3])
    margins = np.where(unsure, sizes[level], 0.0)
    max_logprob = np.where(unsure, UNSURE, SURE)
    p = np.array(
        [
            weigh_replay(stats_of(m, max_logprob=s), profile).p_value
            for m, s in zip(margins, max_logprob, strict=True)
        ]
    )
    for a in (0.1, 0.01):
        assert (p < a).mean() <= a + 4 * math.sqrt(a * (1 - a) / len(p))


def test_twice_the_profiles_drift_is_detected():
    """The p-values above are not simply always 1."""
    rng = np.random.default_rng(0)
    margins = np.where(rng.random((300, 150)) < 0.4, 0.05, 0.0)
    p = np.array([p_of(m, n=150, profile=LOOSE) for m in margins])
    assert (p < 0.01).mean() > 0.9


def test_statistics_without_margins_are_refused():
    with pytest.raises(ValueError, match=r"replay_margin: expected margins, got None"):
        weigh_replay(stats_of(None), TIGHT)


def test_profile_without_replay_rates_is_refused():
    with pytest.raises(ValueError, match="profile 'text': expected replay rates, got none"):
        weigh_replay(stats_of(np.zeros(3)), TEXT)
