"""What a failed replay says to a person: a forged token, a forged rest, or another sampler."""

from __future__ import annotations

from grpo_guard.completion import Completion
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.replay.evidence import ReplayEvidence
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.verdict import Finding

# A difference of sampler or weights moves many tokens by little; no single one is to blame then.
SMALL_MARGIN = 0.5
# A forged token makes the few behind it mismatch as well, another seed about a third of all.
FEW, FEW_SHARE = 4, 0.05
# Informative positions in front of the first mismatch that show that the seed was the right one.
ON_THE_WAY = 16


def describe(
    encoder: Encoder,
    completion: Completion,
    encoded: Encoded,
    stats: TokenStats,
    evidence: ReplayEvidence,
) -> Finding:
    """The finding of a rejected completion."""
    assert stats.replay_token is not None
    differs = evidence.excess > 0
    far = evidence.excess >= max(evidence.threshold, SMALL_MARGIN)
    if not far.any():
        return _mismatch(evidence)
    first, first_far = int(differs.argmax()), int(far.argmax())
    isolated = max(FEW, FEW_SHARE * len(differs))
    if int(stats.replay_token[first_far]) in encoder.eos_ids and differs[:first_far].sum() < FEW:
        return _goes_on(encoder, completion, encoded, first_far, evidence)
    if far.sum() <= isolated:
        worst = int(evidence.excess.argmax())
        return _forged(encoder, completion, encoded, stats, worst, evidence)
    if int(evidence.informative[:first].sum()) >= ON_THE_WAY:
        return _diverges(encoder, completion, encoded, first, evidence)
    return _mismatch(evidence)


def _mismatch(evidence: ReplayEvidence) -> Finding:
    n = int(evidence.informative.sum())
    message = (
        f"{evidence.informative_matches} of {n} informative positions match the seed: another "
        "seed, run, round, node, slot or prompt, another engine or sampler than declared, or other "
        f"weights; chance for honest work {evidence.p_value:.1e}"
    )
    return Finding("replay_mismatch", message, token_span=(0, len(evidence.excess)))


def _diverges(
    encoder: Encoder,
    completion: Completion,
    encoded: Encoded,
    first: int,
    evidence: ReplayEvidence,
) -> Finding:
    n = len(evidence.excess)
    message = (
        f"follows the seed up to token {first} and diverges there: {evidence.mismatches} of the "
        f"{n - first} tokens from it on differ; chance for honest work {evidence.p_value:.1e}"
    )
    span = encoder.char_span(completion, encoded, first, n)
    return Finding("replay_diverges", message, char_span=span, token_span=(first, n))


def _forged(
    encoder: Encoder,
    completion: Completion,
    encoded: Encoded,
    stats: TokenStats,
    t: int,
    evidence: ReplayEvidence,
) -> Finding:
    assert stats.replay_token is not None
    drawn, sent = int(stats.replay_token[t]), encoded.completion_ids[t]
    theirs, ours = _shown(encoder, sent), _shown(encoder, drawn)
    message = (
        f"token {t} is {theirs}, where the seed draws {ours} by "
        f"{evidence.excess[t]:.2g} logits; {evidence.mismatches} of "
        f"{len(evidence.excess)} tokens differ; chance for honest work {evidence.p_value:.1e}"
    )
    span = encoder.char_span(completion, encoded, t, t + 1)
    return Finding("forged_token", message, char_span=span, token_span=(t, t + 1))


def _goes_on(
    encoder: Encoder,
    completion: Completion,
    encoded: Encoded,
    t: int,
    evidence: ReplayEvidence,
) -> Finding:
    n = len(evidence.excess)
    message = (
        f"goes on at token {t}, where the seed ends it by {evidence.excess[t]:.2g} logits; chance "
        f"for honest work {evidence.p_value:.1e}"
    )
    span = encoder.char_span(completion, encoded, t, n)
    return Finding("suppressed_eos", message, char_span=span, token_span=(t, n))


def _shown(encoder: Encoder, token: int) -> str:
    return f"{encoder.tokenizer.decode([token])[:40]!r} (id {token})"
