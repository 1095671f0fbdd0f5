"""Train the policy that solves maths in Python.

``python -m grpo_guard.evals.policies.train_python_maths``

The recipe of :mod:`grpo_guard.evals.policies.train_word_problems` on generated programs
(:mod:`grpo_guard.evals.policies.program_corpus`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch

from grpo_guard.evals.policies.program_corpus import sample
from grpo_guard.evals.policies.train_word_problems import TrainConfig, train
from grpo_guard.evals.tasks.programs import CODE_CLOSE, CODE_OPEN

PYTHON_MATHS: Final = Path(__file__).resolve().parent / "python_maths"


def main() -> None:
    """Command line: what one may want to change of :class:`TrainConfig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PYTHON_MATHS)
    parser.add_argument("--steps", type=int, default=TrainConfig.steps)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--threads", type=int, default=1)
    args = vars(parser.parse_args())
    torch.set_num_threads(args.pop("threads"))
    print(train(TrainConfig(**args, sample=sample, tags=(CODE_OPEN, CODE_CLOSE))))


if __name__ == "__main__":
    main()
