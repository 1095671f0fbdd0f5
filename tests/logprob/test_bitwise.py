"""Zero tolerance if bits agree, and the self-test that checks whether they do."""

from dataclasses import replace

import pytest

from grpo_guard import LogProbBoundVerifier
from grpo_guard.evals.studies.rounding import rounded_to_bfloat16
from grpo_guard.logprob.bitwise import same_bits
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BITWISE
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.logprob.bundled_policy import SPEC, honest, policy

SEQUENCES = [Encoded(c.prompt_ids, c.completion_ids, False) for c in honest(8)]


class OneByOne(TransformersScorer):
    """A model whose numbers do not depend on the rest of the batch."""

    def score(self, sequences, spec, **options):
        return [super(OneByOne, self).score([s], spec, **options)[0] for s in sequences]


def test_batch_invariant_engine_passes_the_self_test():
    scorer = OneByOne(policy()[0])
    report = same_bits(scorer, OneByOne(policy()[0]), SEQUENCES, SPEC)
    assert report.deserved
    assert report.tokens == 2 * sum(len(s.completion_ids) for s in SEQUENCES)
    assert report.where is None


def test_other_number_format_fails_the_self_test():
    other = OneByOne(rounded_to_bfloat16(policy()[0]))
    report = same_bits(OneByOne(policy()[0]), other, SEQUENCES, SPEC)
    assert not report.deserved
    assert report.where == "engines"
    assert report.largest > 1e-4


def test_self_test_without_completions_is_refused():
    with pytest.raises(ValueError, match="sequences: expected at least one, got none"):
        same_bits(OneByOne(policy()[0]), OneByOne(policy()[0]), [], SPEC)


def test_one_token_beyond_the_edge_rejects_with_zero_tolerance():
    """Under the other profiles a token next to the edge is tolerated as drift."""
    from grpo_guard.logprob.evidence import weigh

    scorer = OneByOne(policy()[0])
    stats = scorer.score(SEQUENCES[:1], SPEC)[0]
    gaps = stats.edge_gap.copy()
    assert gaps.max() == 0
    assert weigh(stats, BITWISE, SPEC).p_value > 1e-3
    gaps[3] = 1e-4
    assert weigh(replace(stats, edge_gap=gaps), BITWISE, SPEC).p_value < 1e-6


def test_honest_work_passes_if_bits_agree():
    _, tokenizer = policy()
    verifier = LogProbBoundVerifier(
        tokenizer=tokenizer, scorer=OneByOne(policy()[0]), sampling=SPEC, profile="bitwise"
    )
    assert not any(v.rejected for v in verifier.verify(honest(64)))
