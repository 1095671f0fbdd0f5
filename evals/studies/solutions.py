"""Reads honest solutions to GSM8K's questions from a folder, for the studies.

The folder holds ``train.jsonl`` and ``model_solutions.jsonl``; each line of the latter has
``question``, ``completion``, ``ground_truth``, ``model`` and ``is_correct``.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import InputError, read_objects
from grpo_guard.core.prompts import Message
from grpo_guard.evals.tasks import gsm8k

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODELS: Final = "model_solutions.jsonl"
TRAIN: Final = "train.jsonl"


@dataclass(frozen=True, slots=True)
class Solution:
    """A question from GSM8K with a solution.

    ``text`` can contain calculator notes, ``gold`` is the data set's own solution, and ``correct``
    tells whether the solution ends with the right answer.
    """

    question: str
    text: str
    answer: str = ""
    model: str = "gsm8k"
    correct: bool = True
    gold: str = ""


def of_models(folder: Path) -> list[Solution]:
    """Return all solutions by models, in file order."""
    found = []
    for _, row in read_objects(folder / MODELS):
        gold = row["ground_truth"]
        answer = gold.rpartition("A:")[2].strip()
        whose = row["model"], bool(row["is_correct"])
        found.append(Solution(row["question"], row["completion"], answer, *whose, gold))
    return found


def of_gsm8k(folder: Path, form: Callable[[str], str] = gsm8k.plain) -> list[Solution]:
    """Return the data set's own solutions; by default ``form`` removes the calculator notes."""
    return [Solution(q.question, form(q.solution), q.answer) for q in gsm8k.load(folder / TRAIN)]


def other_model(
    path: Path,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    ask: Callable[[str], str | Sequence[Message]],
    count: int,
    seed: int,
    min_tokens: int = 1,
) -> list[Completion]:
    """Draw ``count`` of another model's answers at random, with their questions asked as ours are.

    ``path`` is in the format of GSM8K's ``example_model_solutions``; answers of fewer than
    ``min_tokens`` tokens are left out, as for the honest completions.
    """
    rows = []
    for number, row in read_objects(path):
        for name in ("question", "completion"):
            if not isinstance(row.get(name), str):
                got = repr(row.get(name))[:60]
                raise InputError(f"{path}:{number}: {name}: expected a string, got {got}")
        rows.append((row["question"], row["completion"]))
    random.Random(f"{seed}:other").shuffle(rows)
    made: list[Completion] = []
    for question, text in rows:
        if len(made) == count:
            break
        ids = (*tokenizer.encode(text, add_special_tokens=False), int(tokenizer.eos_token_id))
        if len(ids) >= min_tokens:
            made.append(Completion(ask(question), text, completion_ids=ids))
    return made
