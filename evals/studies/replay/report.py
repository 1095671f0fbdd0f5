"""Verdicts of every sample under one verifier, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.stats import auroc
from grpo_guard.evals.studies.harness import rate, rejected
from grpo_guard.evals.studies.replay.sets import COIN, SPEC
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16, DriftProfile
from grpo_guard.logprob.replay.evidence import weigh_replay
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.stats import TokenStats

HONEST = "honest"
ALPHAS = (1e-2, 5e-3, 1e-3, 1e-4, 1e-6)
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 0.75, 1.0)
# Tokens over which detection of a misdeclared sampler is reported.
CHUNK = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """Completions of one kind."""

    name: str
    completions: Sequence[Completion]


def measured(
    model: Any, tokenizer: Any, samples: Sequence[Sample], profile: DriftProfile = BFLOAT16
) -> dict[str, Any]:
    """Verify all samples, the honest one first, with one number format.

    Returns:
        ``tokens`` of the honest completions, how many of these are ``informative`` and which share
        of them matches, ``margins``: honest tokens whose margin is at least so much (at 0, more
        than 0), and the figures of each sample.
    """
    scorer = SharedScores(TransformersScorer(model))
    found, stats = dict[str, Any](), {}
    for sample in samples:
        # A new one for each sample: all of them fill the same slots.
        verifier = SeedReplayVerifier(
            tokenizer=tokenizer, scorer=scorer, sampling=SPEC, coin=COIN, profile=profile
        )
        verdicts = verifier.verify(sample.completions)
        found[sample.name] = rejected(verdicts) | {"rejected_at_alpha": _by_alpha(verdicts)}
        stats[sample.name] = _stats(scorer, sample.completions, profile)
        if sample.name != HONEST:
            found[sample.name] |= _roc(stats[HONEST], stats[sample.name], profile)
    honest = [weigh_replay(s, profile) for s in stats[HONEST]]
    excess = np.concatenate([e.excess for e in honest])
    informative = sum(int(e.informative.sum()) for e in honest)
    margins = {m: int((excess >= m).sum() if m else (excess > 0).sum()) for m in MARGINS}
    return {
        "profile": profile.name,
        "tokens": len(excess),
        "informative": informative,
        "match_rate": sum(e.informative_matches for e in honest) / informative,
        "margins": {f"{m:g}": count for m, count in margins.items()},
        "samples": found,
    }


def _by_alpha(verdicts: Sequence[Verdict]) -> dict[str, int]:
    p = [v.p_value if v.p_value is not None else float(not v.rejected) for v in verdicts]
    return {f"{alpha:g}": sum(value < alpha for value in p) for alpha in ALPHAS}


def _stats(
    scorer: SharedScores, completions: Sequence[Completion], profile: DriftProfile
) -> list[TokenStats]:
    encoded = [
        Encoded(
            c.prompt_ids or (),
            c.completion_ids or (),
            False,
            COIN.seed(round=c.round or 0, node=c.node or "", slot=c.slot or 0, prompt=c.prompt),
        )
        for c in completions
    ]
    return scorer.score(encoded, SPEC, mass_margin=profile.mass_margin, replay=Replay())


def _roc(
    honest: Sequence[TokenStats], theirs: Sequence[TokenStats], profile: DriftProfile
) -> dict[str, Any]:
    """How well p-values of chunks tell a sample from honest work."""
    p_honest = np.array([weigh_replay(c, profile).p_value for c in _chunks(honest)])
    p_theirs = np.array([weigh_replay(c, profile).p_value for c in _chunks(theirs)])
    return {
        "tokens_per_chunk": CHUNK,
        "auc": auroc(p_theirs, p_honest) if len(p_theirs) else None,
        "chunks_rejected_at_alpha": {
            f"{alpha:g}": {
                "honest": rate(int((p_honest < alpha).sum()), len(p_honest)),
                "sample": rate(int((p_theirs < alpha).sum()), len(p_theirs)),
            }
            for alpha in ALPHAS
        },
    }


def _chunks(stats: Sequence[TokenStats]) -> list[TokenStats]:
    """Completions one after the other, joined until there are enough tokens."""
    chunks: list[TokenStats] = []
    waiting: list[TokenStats] = []
    for one in stats:
        waiting.append(one)
        if sum(map(len, waiting)) >= CHUNK:
            columns = {
                f.name: np.concatenate([getattr(s, f.name) for s in waiting])
                for f in fields(TokenStats)
            }
            chunks.append(TokenStats(**columns))
            waiting = []
    return chunks
