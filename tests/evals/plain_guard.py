"""A function that returns verdicts: a guard without state."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Review


def plain(function: Callable[[list[Completion]], list[Verdict]]) -> Any:
    return SimpleNamespace(
        begin=lambda round, prompts: None,
        review=lambda batch: Review(function(batch), {}),
        excluded=tuple,
        state=dict,
        restore=lambda state: None,
    )
