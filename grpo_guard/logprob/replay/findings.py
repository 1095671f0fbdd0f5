"""Describe a failed replay: a forged token, a forged remainder, or another sampler."""

from __future__ import annotations

from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.verdict import Finding
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.replay.evidence import ReplayEvidence
from grpo_guard.logprob.stats import TokenStats

# A different sampler or other weights shift many tokens slightly; no single one is to blame.
SMALL_MARGIN = 0.5
# After a forged token, a few more tokens mismatch; under another seed, about a third of all do.
FEW, FEW_SHARE = 4, 0.05
# This many informative matches before the first mismatch show that the right seed was used.
ON_THE_WAY = 16


def describe(
    encoder: Encoder,
    completion: Completion,
    encoded: Encoded,
    stats: TokenStats,
    evidence: ReplayEvidence,
) -> Finding:
    """Return the finding that explains why a completion is rejected."""
    kind, message, (start, end) = _diagnosis(encoder, encoded, stats, evidence)
    message += f"; chance for honest work {p_text(evidence.p_value)}"
    # If the whole completion is wrong, no part of it is highlighted.
    whole = kind == "replay_mismatch"
    chars = None if whole else encoder.char_span(completion, encoded, start, end)
    return Finding(kind, message, char_span=chars, token_span=encoded.span(start, end))


def _diagnosis(
    encoder: Encoder, encoded: Encoded, stats: TokenStats, evidence: ReplayEvidence
) -> tuple[str, str, tuple[int, int]]:
    """Return the kind, message and token span of the finding."""
    assert stats.replay_token is not None
    excess, n = evidence.excess, len(evidence.excess)
    differs, far = excess > 0, excess >= max(evidence.threshold, SMALL_MARGIN)
    first, first_far, worst = int(differs.argmax()), int(far.argmax()), int(excess.argmax())
    places = encoded.places  # positions in the whole completion, for messages
    ends = int(stats.replay_token[first_far]) in encoder.eos_ids
    if far.any() and ends and differs[:first_far].sum() < FEW:
        by = f"{excess[first_far]:.2g} logits"
        message = f"continues at token {places[first_far]}, where the seed ends it by {by}"
        return "suppressed_eos", message, (first_far, n)
    if far.any() and far.sum() <= max(FEW, FEW_SHARE * n):
        theirs = _shown(encoder, encoded.completion_ids[worst])
        ours = _shown(encoder, int(stats.replay_token[worst]))
        message = (
            f"token {places[worst]} is {theirs}, where the seed draws {ours} by "
            f"{excess[worst]:.2g} logits; {evidence.mismatches} of {n} tokens differ"
        )
        return "forged_token", message, (worst, worst + 1)
    if far.any() and int(evidence.informative[:first].sum()) >= ON_THE_WAY:
        message = (
            f"follows the seed up to token {places[first]} and diverges there: "
            f"{evidence.mismatches} of the {n - first} tokens from it on differ"
        )
        return "replay_diverges", message, (first, n)
    message = (
        f"{evidence.informative_matches} of {int(evidence.informative.sum())} informative "
        "positions match the seed: another seed, run, round, node, slot or prompt, another engine "
        "or sampler than declared, or other weights"
    )
    return "replay_mismatch", message, (0, n)


def _shown(encoder: Encoder, token: int) -> str:
    return f"{encoder.tokenizer.decode([token])[:40]!r} (id {token})"
