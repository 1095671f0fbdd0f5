"""References for a defender of a generated task, who solves each question himself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from grpo_guard.core.prompts import Message
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.registry import WORD_PROBLEMS
from grpo_guard.guard.references import References

_SENTENCE: Final = re.compile(r"[^.?]{1,200}[.?]")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LESS: Final = ("gives away", "loses", "sells", "takes", "are gone")


class OfTask(References):
    """References of a task's problems, by prompt; only word problems have any."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._known = task.name == WORD_PROBLEMS

    def of(self, prompt: str | Sequence[Message]) -> str | None:
        """Compute the answer from the sentences of a word problem."""
        if not self._known or not isinstance(prompt, str):
            return None
        total: int | None = None
        for sentence in _SENTENCE.findall(prompt.removeprefix("Q:")):
            numbers = [int(digits) for digits in _NUMBER.findall(sentence)]
            if total is None:
                total = numbers[0] * (numbers[1] if len(numbers) > 1 else 1) if numbers else None
            elif numbers:
                less = any(words in sentence for words in _LESS)
                total += -numbers[0] if less else numbers[0]
        return None if total is None else str(total)
