"""Prompts as trainers have them, text or messages: their text, and what tells two of them apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""One chat message: at least ``role`` and ``content``, as the trainers have it."""

# Of a prompt in messages; talks of 1,000 turns have 10,000 parts.
MAX_PROMPT_PARTS: Final = 100_000


def content_text(content: Any) -> str:
    """A message's text; of content in parts, as multimodal chats have it, the parts that are text,
    put together without a gap as chat templates do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def prompt_key(prompt: str | Sequence[Message]) -> str:
    """What completions of one prompt have in common: the prompt if it is text, else a digest.

    Parts that are no text count by what they hold (images, arrays) or by their `repr`. Never
    raises: in some swarms peers send the prompt, and one that is nested too deeply, refers to
    itself or holds a number too long to print must not cost a batch its verdicts. Nothing recurses,
    and what comes after `MAX_PROMPT_PARTS` parts does not count.
    """
    if isinstance(prompt, str):
        # A text that reads like a digest must not be taken for the messages that it is of.
        return f"messages text {prompt}" if prompt.startswith("messages ") else prompt
    digest = hashlib.sha256()
    pending: list[Any] = [prompt]
    for _ in range(MAX_PROMPT_PARTS + 1):  # and the list that holds them
        if not pending:
            break
        part = pending.pop()
        if isinstance(part, Mapping):
            items = [piece for item in part.items() for piece in item]
            pending += reversed(items)
            said = f"{{{len(items)}".encode()
        elif isinstance(part, list | tuple):
            pending += reversed(part)
            said = f"[{len(part)}".encode()
        else:
            said = _said_by(part)
        digest.update(b"%d:" % len(said) + said)
    return f"messages {digest.hexdigest()}"


def _said_by(part: Any) -> bytes:
    """A part of a prompt that holds no others, as bytes that tell its kind."""
    if isinstance(part, str):
        return b"s" + part.encode("utf-8", "surrogatepass")
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i" + hex(part).encode()  # unlike decimals, of any length
    try:
        held = part.tobytes() if callable(getattr(part, "tobytes", None)) else repr(part).encode()
        size = getattr(part, "size", "")  # two images of other shapes may hold the same bytes
        return f"{type(part).__name__} {size!s:.80} ".encode() + bytes(held)
    except Exception:  # a foreign object: what it raises is not ours to know
        return type(part).__name__.encode()
