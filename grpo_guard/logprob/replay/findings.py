"""What a failed replay says to a person: a forged token, a forged rest, or another sampler."""

from __future__ import annotations

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.replay.evidence import ReplayEvidence
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.verdict import Finding

# Where fewer of the informative positions match, the text is not the coin's.
LEAST_MATCH = 0.85
# A difference of sampler or weights moves many tokens by little; no single one is to blame then.
SMALL_MARGIN = 0.5
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
    first = int(np.argmax(evidence.excess > 0))
    far = evidence.excess >= max(evidence.threshold, SMALL_MARGIN)
    if not far.any() or _matches(evidence, first) < LEAST_MATCH:
        if int(evidence.informative[:first].sum()) < ON_THE_WAY or not far.any():
            return _mismatch(evidence)
        return _diverges(encoder, completion, encoded, first, evidence)
    return _forged(encoder, completion, encoded, stats, int(evidence.excess.argmax()), evidence)


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
    if drawn in encoder.eos_ids:
        what = f"goes on at token {t}, where the seed ends it"
        kind = "suppressed_eos"
    else:
        what = (
            f"token {t} is {_shown(encoder, sent)}, where the seed draws {_shown(encoder, drawn)}"
        )
        kind = "forged_token"
    message = (
        f"{what} by {evidence.excess[t]:.2g} logits; {evidence.mismatches} of "
        f"{len(evidence.excess)} tokens differ; chance for honest work {evidence.p_value:.1e}"
    )
    span = encoder.char_span(completion, encoded, t, t + 1)
    return Finding(kind, message, char_span=span, token_span=(t, t + 1))


def _matches(evidence: ReplayEvidence, start: int) -> float:
    """Share of the informative positions behind ``start`` that match; 1 where there are none."""
    informative = evidence.informative[start + 1 :]
    if not informative.any():
        return 1.0
    return float((evidence.excess[start + 1 :][informative] <= 0).mean())


def _shown(encoder: Encoder, token: int) -> str:
    return f"{encoder.tokenizer.decode([token])[:40]!r} (id {token})"
