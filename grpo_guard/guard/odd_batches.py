"""Warn once about a batch that shows a guard set up wrongly.

If the sampler is declared incorrectly, or honest work exceeds a limit, nearly everything is
rejected, and the trainer's log only shows a ``guard/reject_rate`` of 1. Token ids of another
tokenizer decode to nonsense: a guard that reads them rejects everything or, worse, finds nothing
wrong with the nonsense and accepts everything.
"""

import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.pages import page
from grpo_guard.core.quoting import shown
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.policy_checks import own_detokenizer

logger = logging.getLogger("grpo_guard")

_FEWEST = 8
"""Minimum size of a batch, in completions, so that a few rejections are not a majority."""


class RejectionWarning:
    """Warns about the first batch with more than half of its completions rejected.

    There is no warning if just one of several nodes sent all of the rejected completions. A second
    warning covers the first batch in which every verdict is an abstention.
    """

    def __init__(self) -> None:
        self._done = self._abstained = False

    def look_at(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Warn about a batch, [n], if its verdicts, [n], give reason to."""
        self._look_at_abstentions(verdicts)
        if self._done or len(batch) < _FEWEST:
            return
        rejected = [i for i, verdict in enumerate(verdicts) if verdict.rejected]
        if len(rejected) * 2 <= len(batch):
            return
        nodes, theirs = {c.node for c in batch}, {batch[i].node for i in rejected}
        if len(theirs) == 1 < len(nodes):
            return
        self._done = True
        kinds = [_kind(verdicts[i]) for i in rejected]
        ((kind, _count),) = Counter(kinds).most_common(1)
        reason = verdicts[rejected[kinds.index(kind)]].reason
        logger.warning(
            "%d of the %d completions of this batch are rejected, most often by %s, as in %s. If "
            "they are honest, see 'Everything is rejected' in %s. This warning comes once",
            len(rejected), len(batch), kind[0], shown(reason, 300), page("troubleshooting"),
        )  # fmt: skip

    def _look_at_abstentions(self, verdicts: Sequence[Verdict]) -> None:
        if self._abstained or len(verdicts) < 2 or not all(v.abstained for v in verdicts):
            return
        self._abstained = True
        first = verdicts[0]
        logger.warning(
            "none of the %d completions of this batch has a verdict: %s abstains, as in %s. "
            "Policy.on_abstain says what they earn. This warning comes once",
            len(verdicts), ", ".join(first.deciding) or first.verifier, shown(first.reason, 300),
        )  # fmt: skip


def _kind(verdict: Verdict) -> tuple[str, str]:
    """The verifiers that rejected, and the kind of the first finding, or the cause if none."""
    by = ", ".join(verdict.deciding) or verdict.verifier
    return by, verdict.findings[0].kind if verdict.findings else verdict.cause.value


_ENOUGH: Final = 4
"""Minimum number of completions for a decision; fewer could all come from one node."""
_MOST: Final = 16
_WORD: Final = re.compile(r"\w+")
_LONGEST_WORD: Final = 64
"""Maximum length of a word to normalise, in characters: the time taken grows with the square of the
number of consecutive accents."""


class ForeignIdsWarning:
    """Compares ids with texts in the first batch with enough completions that have both; warns if
    the ids do not belong to the guard's tokenizer."""

    def __init__(self) -> None:
        self._done = False

    def look_at(
        self,
        batch: Sequence[Completion],
        verifier: CompletionVerifier,
        detokenizer: Detokenizer | None,
    ) -> None:
        """Warn if most texts in a batch, as it was sent, differ from what their ids decode to, and
        do so for most nodes. Only the first batch with enough completions is examined. If
        ``detokenizer`` is None, the verifier's own tokenizer is used."""
        if self._done:
            return
        sent = [c for c in batch if c.completion_ids and c.text.strip() and not c.given]
        if len(sent) < _ENOUGH:
            return
        self._done = True
        detokenizer = detokenizer or own_detokenizer(verifier)
        if detokenizer is None:
            return
        sent = _in_turn(sent)
        found = [_other_text(detokenizer, completion) for completion in sent]
        others = [i for i, other in enumerate(found) if other is not None]
        # A node can send anything, so one of several nodes alone must not trigger the warning.
        theirs, nodes = {sent[i].node for i in others}, {c.node for c in sent}
        if len(others) * 2 <= len(sent) or len(theirs) * 2 <= len(nodes):
            return
        first = others[0]
        tokenizer = detokenizer.tokenizer
        logger.warning(
            "tokenizer: the ids of %d of %d completions are not those of their texts, such as %s "
            "for %s. The largest id is %d; the guard's tokenizer %s knows %d. It is probably not "
            "the tokenizer that made the ids: pass the policy's own as tokenizer=... (in a guard "
            "file, tokenizer: FOLDER). This warning comes once",
            len(others), len(sent), found[first], shown(sent[first].text, 60),
            max(max(c.completion_ids or ()) for c in sent),
            getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__,
            len(detokenizer.known),
        )  # fmt: skip


def _in_turn(sent: list[Completion]) -> list[Completion]:
    """At most `_MOST` of the completions, taken from the nodes in turn."""
    by_node = defaultdict[str | None, list[Completion]](list)
    for completion in sent:
        by_node[completion.node].append(completion)
    rows = chain.from_iterable(zip_longest(*by_node.values()))
    return [completion for completion in rows if completion is not None][:_MOST]


def _other_text(detokenizer: Detokenizer, completion: Completion) -> str | None:
    """Return what the ids decode to, for a message, if that differs from the text; otherwise None.

    Trainers cut texts at stop strings, remove reasoning and special tokens, and reformat tool
    calls. So the decoded text counts as different only if it lacks most of the completion's words.
    """
    ids = completion.completion_ids or ()
    if detokenizer.known and any(token not in detokenizer.known for token in ids):
        return "ids outside the vocabulary"
    try:
        decoded = detokenizer.plain(ids)
    except Exception as error:  # from another library's tokenizer
        return type(error).__name__
    text, there = _composed(completion.text), _composed(decoded)
    bare, bare_there = text.replace(" ", ""), there.replace(" ", "")
    if bare in bare_there or bare_there in bare:
        return None
    words, known = _WORD.findall(text), set(_WORD.findall(there))
    count = sum(word in known for word in words)
    return None if count * 2 >= len(words) else shown(decoded, 60)


def _composed(text: str) -> str:
    """The text with single spaces and, except in overlong words, composed characters (NFC)."""
    words = text.split()
    return " ".join(
        unicodedata.normalize("NFC", word) if len(word) <= _LONGEST_WORD else word for word in words
    )
