"""Error rates of the judge that ships: ``python -m grpo_guard.evals.studies.judge.measure [-o FILE]``.

All seeds are fresh, and phrases come from the part of the generator that training never draws from.
``accepted`` is the judge alone, without the screens that run before it by default;
``accepted_behind_screens`` is the verifier as it ships. GSM8K is read where ``GRPO_GUARD_GSM8K``
names its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from grpo_guard.completion import Completion
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.studies.judge.samples import draw
from grpo_guard.evals.studies.judge.sets import attacked, made, of_policy
from grpo_guard.evals.tasks.word_problems import prompt_of
from grpo_guard.judge.shipped import SETTINGS, shipped_judge
from grpo_guard.judge.verifier import JudgeVerifier

SEED: Final = "measure-1"
CHUNK: Final = 512


def gsm8k(folder: Path, count: int) -> Iterator[tuple[str, list[Completion]]]:
    """Real solutions of another task: the data set's own and a model's right ones."""
    rows = (folder / "model_solutions.jsonl").read_text(encoding="utf-8").splitlines()
    right = [row for row in map(json.loads, rows) if row["is_correct"]][:count]
    for name, field in (
        ("a model's right solutions", "completion"),
        ("ground truth", "ground_truth"),
    ):
        cases = [Completion(prompt_of(row["question"]), row[field]) for row in right]
        yield f"GSM8K: {name}", cases


def rates(judge: JudgeVerifier, name: str, cases: Sequence[Completion]) -> dict[str, Any]:
    """Counts and 95 % Wilson intervals of one set."""
    verdicts = [v for i in range(0, len(cases), CHUNK) for v in judge.verify(cases[i : i + CHUNK])]
    screened = ScreensVerifier().verify(cases)
    accepted = [verdict.accepted for verdict in verdicts]
    behind = [a and not s.rejected for a, s in zip(accepted, screened, strict=True)]
    return {
        "name": name,
        "total": len(cases),
        "accepted": _counted(accepted),
        "accepted_behind_screens": _counted(behind),
        "abstained": sum(verdict.abstained for verdict in verdicts),
    }


def _counted(flags: Sequence[bool]) -> dict[str, Any]:
    interval = wilson(sum(flags), len(flags))
    value = None if not flags else interval.value
    return {"count": sum(flags), "rate": value, "low": interval.low, "high": interval.high}


def measure(
    seed: str = SEED, *, often: int = 1000, each: int = 500, problems: int = 1600
) -> dict[str, Any]:
    """All rates, as they stand in the JSON.

    Args:
        seed: Of everything that is drawn.
        often: Completions of the task's own solutions and of the repository's attacks.
        each: Completions of each class of the generators.
        problems: Problems that the bundled policy is asked, four times each.
    """
    judge = shipped_judge(screens=None)
    judge.check()
    started = time.process_time()
    found = [rates(judge, name, cases) for name, cases in attacked(seed, often)]
    seconds = time.process_time() - started
    found += [rates(judge, name, cases) for name, cases in of_policy(draw(seed, problems, 4))]
    found += [rates(judge, name, cases) for name, cases in made(seed, each)]
    folder = os.environ.get("GRPO_GUARD_GSM8K")
    if folder:
        found += [rates(judge, name, cases) for name, cases in gsm8k(Path(folder), 200)]
    return {
        "command": "python -m grpo_guard.evals.studies.judge.measure -o docs/results/shipped-judge.json",
        "seed": seed,
        "settings": json.loads(SETTINGS.read_text(encoding="utf-8")),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "completions_per_cpu_second": sum(row["total"] for row in found[:5]) / seconds,
        "rates": found,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Error rates of the judge that ships.")
    parser.add_argument("-o", type=Path, help="JSON with all rates")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--often", type=int, default=1000)
    parser.add_argument("--each", type=int, default=500)
    parser.add_argument("--problems", type=int, default=1600)
    args = vars(parser.parse_args())
    out = args.pop("o")
    torch.set_num_threads(1)
    result = measure(**args)
    for row in result["rates"]:
        alone, behind = row["accepted"], row["accepted_behind_screens"]
        print(
            f"{row['name']:52} accepted {alone['count']:5} of {row['total']:5}"
            f" [{alone['low']:.2%}, {alone['high']:.2%}], behind screens {behind['count']:5}"
        )
    if out:
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
