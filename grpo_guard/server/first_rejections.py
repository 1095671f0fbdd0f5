"""Log each node's first rejection by each verifier, because nobody reads individual verdicts."""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.quoting import printable, shown_name
from grpo_guard.core.verdict import Verdict
from grpo_guard.nodes.intake import STANDING_VERIFIER
from grpo_guard.server.late import awaited

logger = logging.getLogger("grpo_guard")

MOST: Final = 10_000
"""Maximum number of warnings per process. A flood of invented names must not fill the log."""
_REASON: Final = 240
"""Maximum number of characters in a reason."""


class FirstRejections:
    """Warns once for each node and verifier, with the reason. Safe to share between threads.

    Completions without a node's name share one warning per verifier. Nodes that the ledger has
    convicted are left out, because the ledger logs convictions itself.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str | None, str]] = set()
        self._lock = Lock()

    def note(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Log what is new in the verdicts of one request, if a client is still waiting for them."""
        if not awaited():
            return
        for completion, verdict in zip(batch, verdicts, strict=True):
            for one in _rejecting(verdict):
                if one.verifier != STANDING_VERIFIER and self._is_new(completion.node, one):
                    sender = "a node without a name"
                    if completion.node is not None:
                        sender = f"node {shown_name(completion.node)}"
                    reason = printable(" ".join(one.reason.split())[:_REASON])
                    logger.warning("%s: first rejection by %s: %s", sender, one.verifier, reason)

    def _is_new(self, node: str | None, verdict: Verdict) -> bool:
        key = (node, verdict.verifier)
        with self._lock:
            if key in self._known or len(self._known) >= MOST:
                return False
            self._known.add(key)
            if len(self._known) == MOST:
                logger.warning("first rejections are no longer logged after %d", MOST)
            return True


def _rejecting(verdict: Verdict) -> Iterator[Verdict]:
    """Yield the innermost rejecting members of a verdict, or the verdict itself if it has none."""
    if not verdict.rejected:
        return
    members = [member for member in verdict.members if member.rejected]
    for member in members:
        yield from _rejecting(member)
    if not members:
        yield verdict
