"""GSM8K: real grade-school word problems, read from JSONL or through ``datasets``.

Each line in the file holds ``question`` and ``answer``; the answer is a worked solution that ends
with the line ``#### NUMBER`` and has calculator notes: ``<<48/2=24>>`` (arXiv 2110.14168).
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from grpo_guard.content.answers import numbers_in
from grpo_guard.core.arguments import require_choice
from grpo_guard.core.jsonl import InputError, read_objects
from grpo_guard.core.prompts import Message
from grpo_guard.evals.tasks import word_problems
from grpo_guard.evals.tasks.base import Problem

DATASET: Final = ("openai/gsm8k", "main", "train")

Style: TypeAlias = Literal["paper", "steps"]
"""The style of a prompt: ``paper`` asks for ``<think>`` and ``<answer>`` as arXiv 2511.09780 does;
``steps`` is for models too small for a format, which still explain themselves on request."""

PAPER_SYSTEM: Final = (
    "You solve mathematical problems. Reason step by step inside <think> and </think>, writing "
    "each calculation as an equation. Then give the final answer inside <answer> and </answer>."
)
STEPS_REQUEST: Final = (
    "Solve the problem step by step. Explain every step in full sentences and write each "
    "calculation as an equation."
)

_NOTE: Final = re.compile(r"<<[^<>]{0,200}>>")


@dataclass(frozen=True, slots=True)
class Question:
    """A question from GSM8K; ``index`` is its position in the file, counted from 0, and
    ``solution`` its worked solution without the final answer."""

    index: int
    question: str
    solution: str
    answer: str


def load(data: Path | None = None) -> list[Question]:
    """Read all questions from the file ``data``, or through ``datasets`` if ``data`` is None.

    Raises:
        InputError: the file is missing, a line is malformed, or there is no file and ``datasets``
            is not installed or cannot reach its hub.
    """
    if data is None:
        return list(_parsed("datasets:" + "/".join(DATASET), _from_hub()))
    return list(_parsed(str(data), read_objects(data)))


def _from_hub() -> Iterator[tuple[int, Any]]:
    try:
        import datasets
    except ImportError:
        raise InputError(
            "gsm8k: expected --data FILE or the package datasets, got neither; "
            "pip install 'grpo-guard[evals]'"
        ) from None
    name, config, split = DATASET
    try:
        rows: Iterable[Any] = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the hub client can raise whatever its transport raises
        raise InputError(
            f"gsm8k: expected {name} from the hub, got {type(error).__name__}: "
            f"{error!s:.80}; pass --data FILE to read a local copy"
        ) from None
    yield from enumerate(rows, 1)


def _parsed(source: str, rows: Iterable[tuple[int, Any]]) -> Iterator[Question]:
    count = 0
    for number, row in rows:
        where = f"{source}:{number}"
        if not isinstance(row, dict):
            raise InputError(f"{where}: (line): expected a JSON object, got {row!r:.80}")
        for name in ("question", "answer"):
            value = row.get(name)
            if not isinstance(value, str) or not value.strip():
                got = f"{value!r:.80}" if name in row else "nothing"
                raise InputError(f"{where}: {name}: expected a text that is not empty, got {got}")
        solution, mark, answer = row["answer"].rpartition("####")
        if not mark or next(numbers_in(answer), None) is None:
            got = repr(row["answer"][-40:])
            raise InputError(f"{where}: answer: expected '#### NUMBER' at its end, got {got}")
        yield Question(count, row["question"], solution.strip(), answer.strip().replace(",", ""))
        count += 1
    if not count:
        raise InputError(f"{source}: expected at least one question, got an empty file")


def subset(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Return ``count`` questions (or all, if there are fewer) in an order determined by ``seed``.

    A larger count only appends questions, so a measurement can be extended.
    """
    order = list(questions)
    random.Random(seed).shuffle(order)
    return order[:count]


def messages(question: str, style: Style = "steps") -> tuple[Message, ...]:
    """Return the chat that asks ``question`` in the given style."""
    require_choice("style", style, get_args(Style))
    if style == "steps":
        return ({"role": "user", "content": f"{question}\n\n{STEPS_REQUEST}"},)
    return (
        {"role": "system", "content": PAPER_SYSTEM},
        {"role": "user", "content": question},
    )


def plain(text: str) -> str:
    """Remove calculator notes ``<<2+3=5>>`` from a solution."""
    return _NOTE.sub("", text)


def problem(question: Question) -> Problem:
    """Return the question as a training problem whose solution is in the paper's format."""
    working = plain(question.solution)
    return Problem(
        question=question.question,
        prompt=word_problems.prompt_of(question.question),
        solution=f"<think>{working}</think><answer>{question.answer}</answer>",
        answer=question.answer,
    )
