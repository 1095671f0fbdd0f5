"""The attack `claimed_mask` in a detection run: an honest completion with a false sampling mask."""

import random

import pytest

from grpo_guard import LogProbBoundVerifier, ScreensVerifier
from grpo_guard.core.sampling_mask import SamplingMask
from grpo_guard.evals.attacks.claimed_mask import ClaimedMask
from grpo_guard.evals.detect.poison import poisoned
from grpo_guard.evals.tasks.base import Problem
from tests.logprob.bundled_policy import SPEC, honest, policy


@pytest.fixture(scope="module")
def cases():
    return poisoned(honest(16), ClaimedMask(), policy()[1], seed=0)


def test_completion_is_honest_and_mask_claims_no_other_token_was_kept(cases):
    assert len(cases) == 16
    for case, one in zip(cases, honest(16), strict=True):
        sent = case.completion
        assert (sent.text, sent.completion_ids) == (one.text, one.completion_ids)
        assert SamplingMask.of(sent).kept == tuple((token,) for token in sent.completion_ids)


def test_log_prob_verifier_rejects_it_and_text_rules_cannot(cases):
    sent = [case.completion for case in cases]
    bound = LogProbBoundVerifier(*policy(), sampling=SPEC)
    assert not any(v.rejected for v in bound.verify(honest(16)))
    found = bound.verify(sent)
    assert [v.outcome for v in found] == ["reject"] * 16
    assert {f.kind for v in found for f in v.findings} == {"claimed_mask"}
    assert all(v.accepted for v in ScreensVerifier().verify(sent))  # negative control


def test_attack_text_teaches_nothing():
    attack = ClaimedMask()
    found = attack.poison(Problem("q", "Q: q\nA:", "7", "7"), random.Random(0))
    assert (found.text, found.masked) == ("7", True)
    assert not attack.success(found.text)
