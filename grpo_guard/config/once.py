"""`check` judges a single text, for experiments and for filters outside a trainer."""

from collections.abc import Sequence
from typing import Any

from grpo_guard.config.presets import different_weights
from grpo_guard.core.arguments import worded
from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.prompts import Message
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard

_shared: list[Guard] = []
_lock = Lock()


@worded
def check(
    text: str,
    *,
    prompt: str | Sequence[Message] = "",
    guard: Guard | None = None,
    **fields: Any,
) -> Verdict:
    """Return the verdict on a single completion.

    Without ``guard``, the rules of `presets.different_weights` judge the completion in isolation.
    To take repetitions and evidence over rounds into account, call `Guard.verify` of your own guard
    on batches.

    Args:
        text: The text of the completion.
        prompt: The prompt, as text or messages. Rules excuse text that the prompt itself contains.
        guard: A guard to use instead of these rules. If it keeps per-node state, this call counts
            toward it.
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
        # Evidence from one call must not count against the next.
        fields.pop("node", None)
        guard = _shared[0]
    (verdict,) = guard.verify([Completion(prompt, text, **fields)])
    return verdict
