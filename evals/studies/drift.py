"""What the sender's number format costs honest work: ``make drift``.

    python -m grpo_guard.evals.studies.drift --data train.jsonl

Generates with one format and scores with the other, both ways, and writes
``docs/results/drift-smollm2-gsm8k.json``. Completions are kept under ``.measure/``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.evals.detect.run import DetectConfig, Loaded, honest_completions, load
from grpo_guard.evals.results import versions, write_json
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.studies.detection import CACHE, MODEL, RESULTS, SPEC
from grpo_guard.evals.studies.rounding import ROUNDED, rounded_to_bfloat16
from grpo_guard.evals.tasks.gsm8k import find_local
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.stats import TokenStats

DIRECTIONS = ((ROUNDED, "float32"), ("float32", ROUNDED))
GAPS = (0.0, 0.05, 0.125, 0.25, 0.5, 1.0, 2.0)
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True, slots=True)
class Drift:
    """One direction.

    Args:
        generated: Number format of the sampler.
        scored: Number format of the verifier.
        completions: How many.
        tokens: In all of them.
        rejected: Completions rejected under the default profile.
        tokens_outside: (gap, tokens at least that far outside the support, in raw logits).
        logprob_drift: (quantile, |log-prob of the one minus log-prob of the other|).
    """

    generated: str
    scored: str
    completions: int
    tokens: int
    rejected: int
    tokens_outside: tuple[tuple[float, int], ...]
    logprob_drift: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        rate = wilson(self.rejected, self.completions)
        return asdict(self) | {"rejected_low": rate.low, "rejected_high": rate.high}


def measure(n: int, data: Path | None) -> list[Drift]:
    """Both directions on ``n`` completions each."""
    plain = load(MODEL, "float32")
    models = {"float32": plain.model, ROUNDED: rounded_to_bfloat16(plain.model)}
    found = []
    for generated, scored in DIRECTIONS:
        sampler = Loaded(models[generated], plain.tokenizer)
        config = DetectConfig(MODEL, SPEC, data=data, attacks=(), n=n, dtype=generated)
        cache = CACHE / f"smollm2-gsm8k-{generated}.jsonl"
        honest = honest_completions(sampler, config, cache, _say)
        found.append(_compare(honest, models[generated], models[scored], plain.tokenizer, config))
    return found


def _compare(
    honest: Sequence[Completion], sampler: Any, verifier: Any, tokenizer: Any, config: DetectConfig
) -> Drift:
    generated, scored = next(d for d in DIRECTIONS if d[0] == config.dtype)
    check = LogProbBoundVerifier(verifier, tokenizer, sampling=SPEC, profile=BFLOAT16)
    verdicts = check.verify(honest)
    sequences = [Encoded(c.prompt_ids or (), c.completion_ids or (), False) for c in honest]
    theirs = _stats(sampler, sequences)
    ours = _stats(verifier, sequences)
    gaps = np.concatenate([s.edge_gap for s in ours])
    drift = np.concatenate(
        [np.abs(a.logprob - b.logprob) for a, b in zip(ours, theirs, strict=True)]
    )
    return Drift(
        generated,
        scored,
        len(honest),
        len(gaps),
        sum(v.rejected for v in verdicts),
        tuple((gap, int((gaps > 0).sum() if gap == 0 else (gaps >= gap).sum())) for gap in GAPS),
        tuple((q, float(np.quantile(drift, q))) for q in QUANTILES),
    )


def _stats(model: Any, sequences: Sequence[Encoded]) -> list[TokenStats]:
    return TransformersScorer(model).score(sequences, SPEC)


def _say(what: str, done: int, wanted: int) -> None:
    print(f"{what}: {done}/{wanted}", file=sys.stderr, flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="Measure what the number format costs honest work."
    )
    parser.add_argument("--data", type=Path, default=find_local(), help="GSM8K as JSONL")
    parser.add_argument("-n", type=int, default=128, help="completions per direction")
    args = parser.parse_args()
    started = time.monotonic()
    found = measure(args.n, args.data)
    target = RESULTS / "drift-smollm2-gsm8k.json"
    write_json(
        target,
        {
            "kind": "drift",
            "command": "make drift",
            "model": MODEL,
            "sampling": asdict(SPEC),
            "profile": BFLOAT16.name,
            "versions": versions(),
            "seconds": round(time.monotonic() - started),
            "directions": [d.to_dict() for d in found],
        },
    )
    for d in found:
        print(
            f"generated {d.generated}, scored {d.scored}: rejected {d.rejected}/{d.completions}, "
            f"{d.tokens} tokens, outside {d.tokens_outside}, |log-prob drift| {d.logprob_drift}"
        )
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
