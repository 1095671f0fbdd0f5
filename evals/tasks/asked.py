"""Tasks asked as chats, for policies trained to answer chats."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grpo_guard.core.prompts import Message
from grpo_guard.evals.tasks.base import Problem, Task, held_out

Ask = Callable[[str], tuple[Message, ...]]
"""Turns a question into the chat that asks it."""


class AskedInChat:
    """A task whose prompts are chats, rendered by a tokenizer's template.

    The prompt is still plain text, and its token ids are those of the rendered chat. So in a swarm
    with different tokenizers, every node reads chats rendered with the first tokenizer's template.
    """

    def __init__(self, task: Task, ask: Ask, tokenizer: Any) -> None:
        self.name = task.name
        self._task, self._ask, self._tokenizer = task, ask, tokenizer
        self._prompts: dict[str, str] = {}

    def sample(self, rng: random.Random) -> Problem:
        """Draw a problem from the task, with a chat as its prompt."""
        return self._asked(self._task.sample(rng))

    def sample_held_out(self, rng: random.Random) -> Problem:
        """Draw a held-out problem from the task, with a chat as its prompt."""
        return self._asked(held_out(self._task, rng))

    def reward(self, text: str, answer: str) -> float:
        """Delegate to the task."""
        return self._task.reward(text, answer)

    def _asked(self, problem: Problem) -> Problem:
        # Cached, because problems from a file recur and rendering a template is slow.
        if problem.question not in self._prompts:
            chat = [dict(message) for message in self._ask(problem.question)]
            self._prompts[problem.question] = str(
                self._tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, tokenize=False
                )
            )
        return replace(problem, prompt=self._prompts[problem.question])


def turn_end(tokenizer: Any) -> int | None:
    """Return the token that ends an assistant turn in the chat template; None without one.

    The EOS named by a base model's tokenizer may be a different token, one that never ends a chat.
    """
    mark = "An answer."
    chat = [{"role": "user", "content": "A question."}, {"role": "assistant", "content": mark}]
    rendered = str(tokenizer.apply_chat_template(chat, tokenize=False))
    rest = tokenizer.encode(rendered.rpartition(mark)[2], add_special_tokens=False)
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return next((int(token) for token in rest if token in special), None)
