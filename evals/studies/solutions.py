"""Honest solutions of GSM8K's questions, as the studies read them from one folder.

The folder holds ``train.jsonl`` and ``model_solutions.jsonl``; each line of the latter has
``question``, ``completion``, ``ground_truth``, ``model`` and ``is_correct``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpo_guard.evals.tasks import gsm8k
from grpo_guard.jsonl import read_objects

MODELS: Final = "model_solutions.jsonl"
TRAIN: Final = "train.jsonl"


@dataclass(frozen=True, slots=True)
class Solution:
    """A question with somebody's solution.

    Args:
        question: Of GSM8K.
        text: The solution, calculator notes and all.
        answer: The right one, as the file writes it.
        model: Who wrote the solution.
        correct: Whether it ends in the right answer.
        gold: The data set's own solution.
    """

    question: str
    text: str
    answer: str = ""
    model: str = "gsm8k"
    correct: bool = True
    gold: str = ""


def of_models(folder: Path) -> list[Solution]:
    """All solutions of models, in the order of the file.

    Raises:
        OSError: the file cannot be read.
        InputError: a line is malformed.
    """
    found = []
    for _, row in read_objects(folder / MODELS):
        gold = row["ground_truth"]
        answer = gold.rpartition("A:")[2].strip()
        whose = row["model"], bool(row["is_correct"])
        found.append(Solution(row["question"], row["completion"], answer, *whose, gold))
    return found


def of_gsm8k(folder: Path, form: Callable[[str], str] = gsm8k.plain) -> list[Solution]:
    """The data set's own solutions, without notes unless ``form`` says otherwise."""
    return [Solution(q.question, form(q.solution), q.answer) for q in gsm8k.load(folder / TRAIN)]
