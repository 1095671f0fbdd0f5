"""OpenRLHF: the completion's own text out of a query.

A query is the prompt's tokens and the completion's, decoded together with their special tokens. So
it ends with the token that ended the turn, which the engine put there, and it need not begin with
the prompt as it was given: decoding may move blanks, and a prompt that was too long has lost its
beginning. Taken for the author's words, either would be a chat template written out, and screens
would reject every honest completion.
"""

from __future__ import annotations

from typing import Final

from grpo_guard.detokenizer import ENDS

# Of a prompt without its beginning: how much of the query must stand in it to be believed.
LEAST_OVERLAP: Final = 32


def completion_text(query: str, prompt: str) -> str:
    """What the author wrote; the whole query where its prompt cannot be told from it."""
    text = _after(query, prompt)
    for end in ENDS:
        # One, with nothing behind it: whoever writes several, or goes on, wrote them himself.
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
    """Where the prompt ends in the query, if blanks are all that differs."""
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
    """Where the prompt ends, if the query begins with the last part of it.

    All of that part must be there, word for word: were a few words enough, an author could repeat
    them, and what stands before would go unread.
    """
    start, at = query[:LEAST_OVERLAP], 0
    if len(start) < LEAST_OVERLAP:
        return None
    while (at := prompt.find(start, at + 1)) > 0:
        if query.startswith(prompt[at:]):
            return len(prompt) - at
    return None
