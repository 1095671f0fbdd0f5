"""Prompts as trainers pass them, as text or messages: their text, and a key for comparing them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""One chat message in the form that trainers use, with at least ``role`` and ``content``."""

# Maximum number of parts in a chat prompt; a conversation of 1,000 turns has 10,000 parts.
MAX_PROMPT_PARTS: Final = 100_000


def content_text(content: Any) -> str:
    """Return the text of a message's content. The text parts of multimodal content are joined
    without a separator, as in chat templates."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def prompt_key(prompt: str | Sequence[Message]) -> str:
    """Return the key shared by all completions of a prompt: the prompt itself if it is text,
    otherwise a digest.

    Parts other than text are digested by their content (images, arrays) or their `repr`. Never
    raises: in some swarms peers send the prompt, and a prompt that is nested too deeply, contains
    itself or holds a number too long to print must not cost a batch its verdicts. The loop does not
    recurse, and anything after `MAX_PROMPT_PARTS` parts is ignored.
    """
    if isinstance(prompt, str):
        # Text that looks like a digest must not be mistaken for messages with that digest.
        return f"messages text {prompt}" if prompt.startswith("messages ") else prompt
    digest = hashlib.sha256()
    pending: list[Any] = [prompt]
    for _ in range(MAX_PROMPT_PARTS + 1):  # one more for the list itself
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
    """Encode a leaf part as bytes that include its kind."""
    if isinstance(part, str):
        return b"s" + part.encode("utf-8", "surrogatepass")
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i" + hex(part).encode()  # of any length, unlike decimals
    try:
        held = part.tobytes() if callable(getattr(part, "tobytes", None)) else repr(part).encode()
        size = getattr(part, "size", "")  # images of different shapes can have equal bytes
        return f"{type(part).__name__} {size!s:.80} ".encode() + bytes(held)
    except Exception:  # a foreign object can raise anything
        return type(part).__name__.encode()
