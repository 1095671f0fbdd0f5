"""Warn once if most completions in a batch are rejected, or all are abstained on.

This is rarely an attack. If the sampler is declared incorrectly, or honest work exceeds a limit,
nearly everything is rejected, and the trainer's log only shows a ``guard/reject_rate`` of 1.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.quoting import shown
from grpo_guard.core.verdict import Verdict

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
        """Warn if most completions in a batch, [n], are rejected by their verdicts, [n], or if all
        verdicts are abstentions."""
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
            "they are honest, see 'Everything is rejected' in docs/troubleshooting.md. This "
            "warning comes once",
            len(rejected), len(batch), kind[0], shown(reason, 300),
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
