"""Verdicts of every sample under one verifier, and the margins of honest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.harness import rejected
from grpo_guard.evals.studies.replay.sets import COIN, SPEC
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16, DriftProfile
from grpo_guard.logprob.replay.evidence import ReplayEvidence, weigh_replay
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier

MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 0.75, 1.0)


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
        ``tokens`` of the honest completions, which share of the informative ones matches,
        ``margins``: honest tokens whose margin is at least so much (at 0, more than 0), and the
        rejections of each sample.
    """
    scorer = SharedScores(model)
    found = dict[str, Any]()
    for sample in samples:
        # A new one for each sample: all of them fill the same slots.
        verifier = SeedReplayVerifier(
            tokenizer=tokenizer, scorer=scorer, sampling=SPEC, coin=COIN, profile=profile
        )
        found[sample.name] = rejected(verifier.verify(sample.completions))
    honest = _weighed(scorer, samples[0].completions, profile)
    excess = np.concatenate([e.excess for e in honest])
    margins = {m: int((excess >= m).sum() if m else (excess > 0).sum()) for m in MARGINS}
    matches = sum(e.informative_matches for e in honest)
    return {
        "profile": profile.name,
        "tokens": len(excess),
        "match_rate": matches / sum(int(e.informative.sum()) for e in honest),
        "margins": {f"{m:g}": count for m, count in margins.items()},
        "samples": found,
    }


def _weighed(
    scorer: SharedScores, completions: Sequence[Completion], profile: DriftProfile
) -> list[ReplayEvidence]:
    encoded = [
        Encoded(
            c.prompt_ids or (),
            c.completion_ids or (),
            False,
            COIN.seed(round=c.round or 0, node=c.node or "", slot=c.slot or 0, prompt=c.prompt),
        )
        for c in completions
    ]
    stats = scorer.score(encoded, SPEC, mass_margin=profile.mass_margin, replay=Replay())
    return [weigh_replay(one, profile) for one in stats]
