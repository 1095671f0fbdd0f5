"""Error rates of the shipped judge.

``python -m grpo_guard.evals.training.judge.measure [-o FILE]``

All seeds are fresh, and phrases come from the part of the generator that training never draws on.
``accepted`` refers to the judge on its own, without the screens that run before it by default.
GSM8K is included if ``GRPO_GUARD_GSM8K`` names its folder.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.harness import option, rate, study, verify
from grpo_guard.evals.studies.solutions import of_models
from grpo_guard.evals.tasks.word_problems import prompt_of
from grpo_guard.evals.training.judge.sets import attacked, draw, made, of_policy
from grpo_guard.judge.shipped import SETTINGS
from grpo_guard.judge.verifier import JudgeVerifier

SEED: Final = "measure-1"
CHUNK: Final = 512


def gsm8k(folder: Path, count: int) -> Iterator[tuple[str, list[Completion]]]:
    """Yield real solutions to another task: a model's correct solutions and the data set's own."""
    right = [row for row in of_models(folder) if row.correct][:count]
    asked = [prompt_of(row.question) for row in right]
    for name, texts in (
        ("a model's right solutions", [row.text for row in right]),
        ("ground truth", [row.gold for row in right]),
    ):
        yield f"GSM8K: {name}", list(map(Completion, asked, texts))


def rates(judge: JudgeVerifier, cases: Sequence[Completion]) -> dict[str, Any]:
    """Count the accepted completions in one set."""
    verdicts = verify(judge, cases, CHUNK)
    return {
        "accepted": rate(sum(verdict.accepted for verdict in verdicts), len(cases)),
        "abstained": sum(verdict.abstained for verdict in verdicts),
    }


def measure(seed: str, often: int, each: int, problems: int) -> dict[str, Any]:
    """Compute all figures."""
    torch.set_num_threads(1)
    judge = JudgeVerifier(screens=None)
    judge.check()
    started = time.process_time()
    found = {name: rates(judge, cases) for name, cases in attacked(seed, often)}
    seconds, judged = time.process_time() - started, often * len(found)
    sets = [*of_policy(draw(seed, problems, 4)), *made(seed, each)]
    if folder := os.environ.get("GRPO_GUARD_GSM8K"):
        sets += gsm8k(Path(folder), 200)
    found |= {name: rates(judge, cases) for name, cases in sets}
    return {
        "settings": json.loads(SETTINGS.read_text(encoding="utf-8")),
        "completions_per_cpu_second": judged / seconds,
        "rates": found,
    }


if __name__ == "__main__":
    study(
        "shipped-judge",
        measure,
        option("--seed", default=SEED, help="seed of all draws"),
        option("--often", type=int, default=1000, help="completions of the task and each attack"),
        option("--each", type=int, default=500, help="completions of each generated class"),
        option("--problems", type=int, default=1600, help="for the policy, four samples each"),
    )
