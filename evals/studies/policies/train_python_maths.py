"""Train the policy that solves maths in Python.

``python -m grpo_guard.evals.studies.policies.train_python_maths``

The recipe of :mod:`grpo_guard.evals.studies.policies.train_word_problems` on generated programs
(:mod:`grpo_guard.evals.policies.program_corpus`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch

from grpo_guard.evals.policies.bundled import BUNDLED
from grpo_guard.evals.policies.program_corpus import sample
from grpo_guard.evals.studies.policies.train_word_problems import TrainConfig, train
from grpo_guard.evals.tasks.programs import CODE_CLOSE, CODE_OPEN

# The loss hardly falls after that: the corpus is diverse on purpose.
STEPS: Final = 900


def main() -> None:
    """Command line: what one may want to change of :class:`TrainConfig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BUNDLED["python_maths"])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--threads", type=int, default=1)
    args = vars(parser.parse_args())
    torch.set_num_threads(args.pop("threads"))
    print(train(TrainConfig(**args, sample=sample, tags=(CODE_OPEN, CODE_CLOSE))))


if __name__ == "__main__":
    main()
