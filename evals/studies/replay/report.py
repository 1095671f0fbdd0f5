"""Verdicts of every sample under one verifier, and what follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.evals.detect.shared_scores import SharedScores
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.studies.replay.sets import COIN, SPEC
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16, DriftProfile
from grpo_guard.logprob.replay.evidence import weigh_replay
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.verdict import Verdict

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


@dataclass(frozen=True, slots=True)
class Row:
    """One sample's verdicts at the verifier's alpha, and rejections at others."""

    name: str
    total: int
    rejected: int
    abstained: int
    kinds: Mapping[str, int]
    by_alpha: Mapping[float, int]

    def to_dict(self) -> dict[str, Any]:
        rate = wilson(self.rejected, self.total)
        return {
            "sample": self.name,
            "total": self.total,
            "rejected": self.rejected,
            "abstained": self.abstained,
            "low": rate.low,
            "high": rate.high,
            "findings": dict(self.kinds),
            "rejected_at_alpha": {f"{alpha:g}": k for alpha, k in self.by_alpha.items()},
        }


@dataclass(frozen=True, slots=True)
class Roc:
    """How well p-values of chunks tell a sample from honest work.

    Args:
        name: Of the sample.
        chunks: Of it, each of at least `CHUNK` tokens.
        auc: Area under the curve.
        points: (honest chunks rejected, the sample's chunks rejected) at each of `ALPHAS`.
    """

    name: str
    chunks: int
    honest_chunks: int
    auc: float
    points: Mapping[float, tuple[int, int]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "sample": self.name,
            "tokens_per_chunk": CHUNK,
            "chunks": self.chunks,
            "honest_chunks": self.honest_chunks,
            "auc": self.auc,
            "rejected_at_alpha": {
                f"{alpha:g}": {"honest": honest, "sample": found}
                for alpha, (honest, found) in self.points.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Direction:
    """All samples, drawn in one number format and verified in another.

    Args:
        generated: Number format of the nodes.
        verified: Of the verifier.
        tokens: Of the honest completions.
        match_rate: Of their informative positions.
        informative: How many these are.
        margins: (m, honest tokens whose margin is m or more; at 0, more than 0).
        rows: Of each sample.
        rocs: Of each sample but the honest one.
    """

    generated: str
    verified: str
    tokens: int
    informative: int
    match_rate: float
    margins: Sequence[tuple[float, int]]
    rows: Sequence[Row]
    rocs: Sequence[Roc]

    def to_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {
            "profile": BFLOAT16.name,
            "rows": [row.to_dict() for row in self.rows],
            "rocs": [roc.to_dict() for roc in self.rocs],
        }

    def summary(self) -> str:
        lines = [
            f"drawn in {self.generated}, verified in {self.verified}: {self.tokens} honest tokens, "
            f"{self.match_rate:.4f} of {self.informative} informative ones match, margins "
            + ", ".join(f">={m:g}: {k}" for m, k in self.margins)
        ]
        for row in self.rows:
            rate = wilson(row.rejected, row.total)
            lines.append(
                f"  {row.name:24} rejected {row.rejected}/{row.total} "
                f"({rate.low:.1%}-{rate.high:.1%}) {dict(row.kinds)} "
                f"{ {f'{a:g}': k for a, k in row.by_alpha.items()} }"
            )
        lines += [
            f"  {roc.name:24} {roc.chunks} chunks, AUC {roc.auc:.3f}, {dict(roc.points)}"
            for roc in self.rocs
        ]
        return "\n".join(lines)


def measured(
    models: Mapping[str, Any],
    tokenizer: Any,
    generated: str,
    verified: str,
    samples: Sequence[Sample],
    profile: DriftProfile = BFLOAT16,
) -> Direction:
    """Verify all samples, the honest one first."""
    scorer = SharedScores(TransformersScorer(models[verified]))
    rows, stats = [], {}
    for sample in samples:
        # A new one for each sample: all of them fill the same slots.
        verifier = SeedReplayVerifier(
            tokenizer=tokenizer,
            scorer=scorer,
            sampling=SPEC,
            coin=COIN,
            profile=profile,
        )
        rows.append(_row(sample.name, verifier.verify(sample.completions)))
        stats[sample.name] = _stats(scorer, sample.completions, profile)
    honest = [weigh_replay(s, profile) for s in stats[HONEST]]
    excess = np.concatenate([e.excess for e in honest])
    informative = sum(int(e.informative.sum()) for e in honest)
    matches = sum(e.informative_matches for e in honest)
    return Direction(
        generated,
        verified,
        len(excess),
        informative,
        matches / informative,
        [(m, int((excess >= m).sum() if m else (excess > 0).sum())) for m in MARGINS],
        rows,
        [
            _roc(name, stats[HONEST], theirs, profile)
            for name, theirs in stats.items()
            if name != HONEST
        ],
    )


def _row(name: str, verdicts: Sequence[Verdict]) -> Row:
    p = [v.p_value if v.p_value is not None else float(not v.rejected) for v in verdicts]
    return Row(
        name,
        len(verdicts),
        sum(v.rejected for v in verdicts),
        sum(v.abstained for v in verdicts),
        Counter(v.findings[0].kind for v in verdicts if v.rejected),
        {alpha: sum(value < alpha for value in p) for alpha in ALPHAS},
    )


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
    name: str, honest: Sequence[TokenStats], theirs: Sequence[TokenStats], profile: DriftProfile
) -> Roc:
    p_honest = np.array([weigh_replay(c, profile).p_value for c in _chunks(honest)])
    p_theirs = np.array([weigh_replay(c, profile).p_value for c in _chunks(theirs)])
    below = (p_theirs[:, None] < p_honest).mean() + (p_theirs[:, None] == p_honest).mean() / 2
    return Roc(
        name,
        len(p_theirs),
        len(p_honest),
        float(below),
        {a: (int((p_honest < a).sum()), int((p_theirs < a).sum())) for a in ALPHAS},
    )


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
