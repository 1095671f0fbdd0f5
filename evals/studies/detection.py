"""The long measurements behind the tables in the docs: ``make measure``.

    python -m grpo_guard.evals.studies.detection --data train.jsonl

Each writes one file to ``docs/results/``. Completions are kept under ``.measure/``, so that an
interrupted run continues; delete that folder to measure from nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpo_guard.evals.studies.harness import CACHE, RESULTS
from grpo_guard.evals.tasks.gsm8k import find_local
from grpo_guard.sampling import SamplingSpec

MODEL: Final = "models/SmolLM2-135M-Instruct"
COMMAND: Final = "make measure"
# The sampler of arXiv 2511.09780: top-k 50, top-p 1.0 (its temperature is not stated).
SPEC: Final = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=192)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One detection run.

    ``dtype`` is the format in which the honest completions are generated; all are scored in
    float32.
    """

    name: str
    dtype: str
    n: int
    attacks: tuple[str, ...]
    profiles: tuple[str, ...]
    control_count: int
    verifiers: tuple[str, ...] = ("logprob_bound", "tail_probability")


BOTH: Final = ("bfloat16", "float32")
MEASUREMENTS: Final = (
    Measurement("detect-smollm2-gsm8k", "float32", 256, ("text", "math", "code"), BOTH, 32),
    # Honest work only: does the number format of the sender's machine cost it its reward?
    Measurement("detect-smollm2-gsm8k-bf16", "bfloat16", 40, (), BOTH[:1], 0),
)


def measure(measurement: Measurement, data: Path | None, *, out: Path = RESULTS) -> Path:
    """Run one measurement and return the file that it wrote.

    Raises:
        InputError: no GSM8K, see `grpo_guard.evals.tasks.gsm8k.load`.
        ValueError: no model in ``models/``.
    """
    from rich.console import Console

    from grpo_guard.evals.detect.console import print_table, reporter
    from grpo_guard.evals.detect.run import DetectConfig, results_of, run, write_rows
    from grpo_guard.evals.results import write_json

    config = DetectConfig(
        MODEL,
        SPEC,
        data=data,
        attacks=measurement.attacks,
        profiles=measurement.profiles,
        verifiers=measurement.verifiers,
        n=measurement.n,
        dtype=measurement.dtype,
        control_count=measurement.control_count,
    )
    cache = CACHE / f"smollm2-gsm8k-{measurement.dtype}.jsonl"
    started = time.monotonic()
    with reporter(Console(stderr=True)) as say:
        rows = run(config, cache=cache, say=say)
    results = results_of(config, rows, command=COMMAND, seconds=time.monotonic() - started)
    target = out / f"{measurement.name}.json"
    write_json(target, results)
    write_rows(CACHE / f"{measurement.name}.rows.jsonl", rows)
    print_table(Console(), rows)
    return target


def main() -> None:
    """Command line."""
    names = [m.name for m in MEASUREMENTS]
    parser = argparse.ArgumentParser(description="Run the long measurements (resumable).")
    parser.add_argument("--data", type=Path, default=find_local(), help="GSM8K as JSONL")
    parser.add_argument("--only", choices=names, help="one of them instead of all")
    args = parser.parse_args()
    for measurement in MEASUREMENTS:
        if args.only in (None, measurement.name):
            try:
                print(f"wrote {measure(measurement, args.data)}", flush=True)
            except (ValueError, RuntimeError) as error:
                sys.exit(f"error: {measurement.name}: {error}")


if __name__ == "__main__":
    main()
