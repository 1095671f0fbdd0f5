"""What the sender's number format costs honest work: ``make drift``.

    python -m grpo_guard.evals.studies.drift --data train.jsonl

Generates with one format and scores with the other, both ways, and writes
``docs/results/drift-smollm2-gsm8k.json``. Completions are kept under ``.measure/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.evals.detect.config import DetectConfig, Loaded, load
from grpo_guard.evals.detect.honest import honest_completions
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.studies.detection import MODEL, SPEC
from grpo_guard.evals.studies.harness import CACHE, RESULTS, option, rejected, say, study
from grpo_guard.evals.studies.rounding import ROUNDED, rounded_to_bfloat16
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.stats import TokenStats

DIRECTIONS = ((ROUNDED, "float32"), ("float32", ROUNDED))
GAPS = (0.0, 0.05, 0.125, 0.25, 0.5, 1.0, 2.0)
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


def measure(n: int, data: Path | None) -> dict[str, Any]:
    """Measure both directions on ``n`` completions each."""
    plain = load(MODEL, "float32")
    models = {"float32": plain.model, ROUNDED: rounded_to_bfloat16(plain.model)}
    found: dict[str, Any] = {"model": MODEL, "sampling": asdict(SPEC), "profile": BFLOAT16.name}
    for generated, scored in DIRECTIONS:
        sampler = Loaded(models[generated], plain.tokenizer)
        config = DetectConfig(MODEL, SPEC, data=data, attacks=(), n=n, dtype=generated)
        cache = CACHE / f"smollm2-gsm8k-{generated}.jsonl"
        honest = honest_completions(sampler, config, cache, say)
        found[f"generated {generated}, scored {scored}"] = _compare(
            honest, models[generated], models[scored], plain.tokenizer
        )
    return found


def _compare(
    honest: Sequence[Completion], sampler: Any, verifier: Any, tokenizer: Any
) -> dict[str, Any]:
    """Count rejections, and tokens so far outside the support in raw logits; quantiles of drift.

    The drift is |log-prob of the sampler's weights minus log-prob of the verifier's|.
    """
    check = LogProbBoundVerifier(verifier, tokenizer, sampling=SPEC, profile=BFLOAT16)
    verdicts = check.verify(honest)
    sequences = [Encoded(c.prompt_ids or (), c.completion_ids or (), False) for c in honest]
    theirs = _stats(sampler, sequences)
    ours = _stats(verifier, sequences)
    gaps = np.concatenate([s.edge_gap for s in ours])
    drift = np.concatenate(
        [np.abs(a.logprob - b.logprob) for a, b in zip(ours, theirs, strict=True)]
    )
    beyond = {gap: int((gaps > 0).sum() if gap == 0 else (gaps >= gap).sum()) for gap in GAPS}
    return {
        "rejected": rejected(verdicts),
        "tokens": len(gaps),
        "tokens_outside": {f"{gap:g}": count for gap, count in beyond.items()},
        "logprob_drift": {f"{q:g}": float(np.quantile(drift, q)) for q in QUANTILES},
    }


def _stats(model: Any, sequences: Sequence[Encoded]) -> list[TokenStats]:
    return TransformersScorer(model).score(sequences, SPEC)


if __name__ == "__main__":
    study(
        "drift",
        measure,
        option("--data", type=Path, default=gsm8k_file(), metavar="FILE", help="GSM8K as JSONL"),
        option("-n", type=int, default=128, help="completions per direction"),
        out=RESULTS / "drift-smollm2-gsm8k.json",
    )
