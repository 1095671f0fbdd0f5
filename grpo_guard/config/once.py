"""`check`: one text, one verdict, for experiments and for filters outside a trainer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from grpo_guard.config.presets import different_weights
from grpo_guard.core.arguments import worded
from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import Message
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard

_shared: list[Guard] = []
_lock = threading.Lock()


@worded
def check(
    text: str,
    *,
    prompt: str | Sequence[Message] = "",
    guard: Guard | None = None,
    **fields: Any,
) -> Verdict:
    """The verdict on one completion.

    Without ``guard``, the rules of `presets.different_weights` judge it in isolation. To use
    a node's repetitions and evidence over rounds, call `Guard.verify` of your own guard on batches.

    Args:
        text: The completion.
        prompt: The prompt, text or messages. Rules excuse what the prompt itself contains.
        guard: Used instead of the rules. If it remembers nodes, it remembers the completion.
        **fields: Other fields of `Completion`, such as ``reference="42"`` or ``node="bob"``.

    Raises:
        CompletionError: a field has the wrong form.
        TypeError: a field is unknown.

    Examples:
        >>> check("7 - 5 = 3, so the answer is 3.", prompt="What is 7 - 5?").rejected
        True
    """
    if guard is None:
        with _lock:
            if not _shared:
                made = different_weights()
                made.idle.mute()
                _shared.append(made)
        # Nothing that one call reveals may count against the next one.
        fields.pop("node", None)
        guard = _shared[0]
    (verdict,) = guard.verify([Completion(prompt, text, **fields)])
    return verdict
