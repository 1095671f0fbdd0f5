"""OpenRLHF: extract the completion's own text from a query.

A query is the prompt's and the completion's tokens, decoded together with their special tokens. So
it ends with the token that ended the turn, which the engine added, and it need not begin with the
prompt as given: decoding may move blanks, and a prompt that was too long has lost its beginning. If
either were read as the author's text, it would look like a written-out chat template, and screens
would reject every honest completion.
"""

from __future__ import annotations

from typing import Final

from grpo_guard.core.detokenizer import ENDS

# For a prompt without its beginning: the least part of the query that must match it.
LEAST_OVERLAP: Final = 32


def completion_text(query: str, prompt: str) -> str:
    """The author's text; the whole query if its prompt cannot be identified."""
    text = _after(query, prompt)
    for end in ENDS:
        # Only one, at the very end: an author who writes several, or goes on, wrote them himself.
        if text.endswith(end):
            return text[: -len(end)]
    return text


def _after(query: str, prompt: str) -> str:
    if query.startswith(prompt):
        return query[len(prompt) :]
    at = _end_without_blanks(query, prompt)
    if at is None:
        at = _end_of_truncated(query, prompt)
    return query if at is None else query[at:]


def _end_without_blanks(query: str, prompt: str) -> int | None:
    """The end of the prompt in the query, if only blanks differ."""
    at = 0
    for character in prompt:
        if character.isspace():
            continue
        while at < len(query) and query[at].isspace():
            at += 1
        if at == len(query) or query[at] != character:
            return None
        at += 1
    while at < len(query) and query[at].isspace() and prompt[-1:].isspace():
        at += 1
    return at


def _end_of_truncated(query: str, prompt: str) -> int | None:
    """The end of the prompt, if the query begins with the last part of it.

    That part must match word for word: if a few words were enough, an author could repeat them, and
    the text before them would go unread.
    """
    start, at = query[:LEAST_OVERLAP], 0
    if len(start) < LEAST_OVERLAP:
        return None
    while (at := prompt.find(start, at + 1)) > 0:
        if query.startswith(prompt[at:]):
            return len(prompt) - at
    return None
