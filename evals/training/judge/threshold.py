"""Choose the shipped judge's threshold: ``python -m grpo_guard.evals.training.judge.threshold``.

The threshold is chosen to reject a share ``--rejected`` of honest completions that the judge was
not trained on: half are the task's own solutions, and half are samples from the bundled policy that
are correct and to the point. It is written next to the model, with the counts behind it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_guard.core.completion import Completion
from grpo_guard.evals.results import write_json
from grpo_guard.evals.studies.harness import option, rate, study
from grpo_guard.evals.training.judge.sets import attacked, draw, of_policy
from grpo_guard.judge.backends.base import Request
from grpo_guard.judge.backends.transformers import TransformersBackend
from grpo_guard.judge.modes import LogitMode
from grpo_guard.judge.prompt import Window, messages
from grpo_guard.judge.rubric import Rubric
from grpo_guard.judge.shipped import FOLDER, RUBRIC, SETTINGS

SEED = "threshold-1"
LEAST, MOST = 0.02, 0.98
CHUNK = 64


def p_yes(folder: Path, cases: Sequence[Completion]) -> list[float]:
    """Return the judge's probability of accepting each completion, or 0 if it returns none."""
    backend, rubric, mode = TransformersBackend(folder), Rubric.load(RUBRIC), LogitMode()

    async def asked() -> list[float]:
        found = []
        for start in range(0, len(cases), CHUNK):
            part = [
                messages(rubric, mode.instructions, case, secret=b"threshold", window=Window())
                for case in cases[start : start + CHUNK]
            ]
            requests = [Request(m, max_tokens=1, top_logprobs=mode.top_logprobs) for m in part]
            for reply in await backend.ask(requests, timeout=600):
                found.append((mode.read(reply, "").p_yes or 0.0) if reply.first_token else 0.0)
        return found

    return asyncio.run(asked())


def choose(scores: Sequence[float], rejected: float) -> float:
    """Return a threshold in [0.02, 0.98] with at most a ``rejected`` share of scores below it."""
    place = int(rejected * len(scores))
    return round(min(MOST, max(LEAST, sorted(scores)[place])), 4)


def settings(folder: Path, rejected: float, count: int) -> dict[str, Any]:
    """Compute the judge's settings and write them next to the model."""
    torch.set_num_threads(1)
    _, templated = next(attacked(SEED, count))
    _, sampled = next(of_policy(draw(SEED, count, 4)))
    scores = p_yes(folder, templated) + p_yes(folder, sampled[:count])
    threshold = choose(scores, rejected)
    below = rate(sum(score < threshold for score in scores), len(scores))
    chosen_on = {"honest": below["total"], "rejected": below["hits"], "seed": SEED}
    chosen_on |= {"low": below["low"], "high": below["high"]}
    found = {"rubric": RUBRIC, "threshold": threshold, "chosen_on": chosen_on}
    write_json(folder / SETTINGS.name, found)
    return found


if __name__ == "__main__":
    study(
        "judge-threshold",
        settings,
        option("--folder", type=Path, default=FOLDER),
        option("--rejected", type=float, default=0.02),
        option("--count", type=int, default=1000),
    )
