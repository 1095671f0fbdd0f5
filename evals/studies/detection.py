"""The long measurements behind the tables in the docs: ``make measure``.

    python -m grpo_guard.evals.studies.detection --data train.jsonl

Each measurement writes one file to ``docs/results/``. Completions are kept under ``.measure/``, so
that an interrupted run can resume; delete that folder to measure from scratch.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.config import DetectConfig
from grpo_guard.evals.detect.matrix import matrix_table
from grpo_guard.evals.detect.run import OtherModel, results_of, run, write_rows
from grpo_guard.evals.progress import reporter
from grpo_guard.evals.report.tables import print_table
from grpo_guard.evals.results import write_json
from grpo_guard.evals.studies import solutions
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.studies.harness import CACHE, RESULTS
from grpo_guard.evals.tasks import gsm8k

MODEL: Final = "models/SmolLM2-135M-Instruct"
# The sampler of arXiv 2511.09780: top-k 50, top-p 1.0 (its temperature is not stated).
SPEC: Final = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=192)
_BOTH: Final = DetectConfig(
    MODEL,
    SPEC,
    n=128,
    profiles=("bfloat16", "float32"),
    verifiers=("logprob_bound", "tail_probability"),
)
MEASUREMENTS: Final = {
    "detect-smollm2-gsm8k": _BOTH,
    # Honest work only: does the number format on a sender's machine cost honest work its reward?
    "detect-smollm2-gsm8k-bf16": replace(
        _BOTH, n=40, dtype="bfloat16", attacks=(), profiles=("bfloat16",), control_count=0
    ),
}
"""Measurements by the file they write. ``dtype`` applies to sampling; scoring is in float32."""


def measure(name: str, config: DetectConfig) -> Path:
    """Run one measurement and return the file it wrote."""
    cache = CACHE / f"smollm2-gsm8k-{config.dtype}.jsonl"
    started = time.monotonic()
    with reporter(Console(stderr=True)) as say:
        rows = run(config, cache=cache, say=say, other=_other(config))
    seconds = time.monotonic() - started
    target = RESULTS / f"{name}.json"
    write_json(target, results_of(config, rows, command="make measure", seconds=seconds))
    write_rows(CACHE / f"{name}.rows.jsonl", rows)
    print_table(Console(), matrix_table(rows))
    return target


def _other(config: DetectConfig) -> OtherModel | None:
    """Return a loader of another model's solutions, if their file is next to GSM8K."""
    path = config.data.parent / solutions.MODELS if config.data else None
    if path is None or not path.is_file():
        return None
    return lambda loaded: solutions.other_model(
        path, loaded.tokenizer, ask=gsm8k.messages, count=config.control_count, seed=config.seed,
        min_tokens=config.min_tokens,
    )  # fmt: skip


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run the long measurements (resumable).")
    parser.add_argument("--data", type=Path, default=gsm8k_file(), help="GSM8K as JSONL")
    parser.add_argument("--only", choices=tuple(MEASUREMENTS), help="one of them instead of all")
    args = parser.parse_args()
    for name, config in MEASUREMENTS.items():
        if args.only in (None, name):
            try:
                print(f"wrote {measure(name, replace(config, data=args.data))}", flush=True)
            except (ValueError, RuntimeError) as error:
                sys.exit(f"error: {name}: {error}")


if __name__ == "__main__":
    main()
