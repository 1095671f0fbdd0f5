"""Warn once if the ids of completions do not belong to the guard's tokenizer.

Such ids decode to nonsense. A guard that reads them rejects everything, or, worse, finds nothing
wrong with nonsense and accepts everything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.policy_checks import own_detokenizer

logger = logging.getLogger("grpo_guard")
_ENOUGH: Final = 4
"""Completions by which it is decided: fewer could be those of one node."""
_MOST: Final = 16


class ForeignIdsWarning:
    """Compares the first completions that have both ids and a text."""

    def __init__(self) -> None:
        self._done = False

    def look_at(
        self,
        batch: Sequence[Completion],
        verifier: CompletionVerifier,
        detokenizer: Detokenizer | None,
    ) -> bool:
        """Warn if most texts of a batch are not what their ids decode to; look at no other batch.

        Args:
            batch: Completions as they were sent.
            verifier, detokenizer: The guard's; without a detokenizer, the verifier's own is used.

        Returns:
            Whether it warned.
        """
        if self._done:
            return False
        sent = [c for c in batch if c.completion_ids and c.text.strip() and not c.given][:_MOST]
        if len(sent) < _ENOUGH:
            return False
        self._done = True
        detokenizer = detokenizer or own_detokenizer(verifier)
        if detokenizer is None:
            return False
        found = [_other_text(detokenizer, completion) for completion in sent]
        others = [i for i, other in enumerate(found) if other is not None]
        if len(others) * 2 <= len(sent):
            return False
        first = others[0]
        tokenizer = detokenizer.tokenizer
        logger.warning(
            "tokenizer: the ids of %d of %d completions are not those of their texts, such as %s "
            "for %s. The largest id is %d; the guard's tokenizer %s knows %d. It is probably not "
            "the tokenizer that made the ids: pass the policy's own. This warning comes once",
            len(others), len(sent), found[first], shown(sent[first].text, 60),
            max(max(c.completion_ids or ()) for c in sent),
            getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__,
            len(detokenizer.known),
        )  # fmt: skip
        return True


def _other_text(detokenizer: Detokenizer, completion: Completion) -> str | None:
    """What the ids decode to, for a message, if that is another text; else None.

    Trainers cut texts at stop strings, take reasoning out of them and leave out special tokens, so
    most words of the text must be missing in the ids.
    """
    ids = completion.completion_ids or ()
    if detokenizer.known and any(token not in detokenizer.known for token in ids):
        return "ids outside the vocabulary"
    try:
        decoded = detokenizer.plain(ids)
    except Exception as error:  # of another library's tokenizer
        return type(error).__name__
    words = completion.text.split()
    if _bare(completion.text) in _bare(decoded) or _bare(decoded) in _bare(completion.text):
        return None
    there = set(decoded.split())
    known = sum(word in there for word in words)
    return None if known * 2 >= len(words) else shown(decoded, 60)


def _bare(text: str) -> str:
    return "".join(text.split())
