"""Prompts as trainers pass them, text or messages: their text, and a key to compare them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""One chat message: at least ``role`` and ``content``, as the trainers have it."""

# Of a prompt in messages; conversations of 1,000 turns have 10,000 parts.
MAX_PROMPT_PARTS: Final = 100_000


def content_text(content: Any) -> str:
    """A message's text. For multimodal content it joins the text parts without a gap, as chat
    templates do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def prompt_key(prompt: str | Sequence[Message]) -> str:
    """The key that completions of one prompt share: the prompt if it is text, else a digest.

    Parts other than text count by their content (images, arrays) or their `repr`. Never raises: in
    some swarms peers send the prompt, and one that is nested too deeply, refers to itself or holds
    a number too long to print must not cost a batch its verdicts. Nothing recurses, and anything
    after `MAX_PROMPT_PARTS` parts does not count.
    """
    if isinstance(prompt, str):
        # A text that looks like a digest must not be mistaken for the messages it would come from.
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
            encoded = f"{{{len(items)}".encode()
        elif isinstance(part, list | tuple):
            pending += reversed(part)
            encoded = f"[{len(part)}".encode()
        else:
            encoded = _encoded(part)
        digest.update(b"%d:" % len(encoded) + encoded)
    return f"messages {digest.hexdigest()}"


def _encoded(part: Any) -> bytes:
    """A part without inner parts, as bytes that include its kind."""
    if isinstance(part, str):
        return b"s" + part.encode("utf-8", "surrogatepass")
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i" + hex(part).encode()  # unlike decimals, of any length
    try:
        held = part.tobytes() if callable(getattr(part, "tobytes", None)) else repr(part).encode()
        size = getattr(part, "size", "")  # two images of other shapes may hold the same bytes
        return f"{type(part).__name__} {size!s:.80} ".encode() + bytes(held)
    except Exception:  # a foreign object may raise anything
        return type(part).__name__.encode()
