"""Track the share of abstentions over recent batches, and stop a run that exceeds the limit."""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Outcome, Verdict
from grpo_guard.guard.policy import AbstainError, Policy


class AbstainWindow:
    """Counts abstentions over the most recent batches.

    Abstentions are counted per node, ignoring the worst nodes, so that no minority can end a run by
    causing abstentions. An outage affects all nodes and still ends the run.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Per batch: how often each (node, outcome) occurred. Only the hash of a node's name is
        # kept, because a sender can choose a name of any length.
        self._batches: deque[Counter[tuple[int, Outcome]]] = deque(maxlen=policy.abstain_window)
        self._abstained: deque[int] = deque(maxlen=policy.abstain_window)
        self._lock = threading.Lock()

    def add(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Count one batch; raises AbstainError if the share of abstentions over the window exceeds
        ``max_abstain_rate``."""
        if not verdicts:
            return
        found = Counter(
            [(hash(c.node), verdict.outcome) for c, verdict in zip(batch, verdicts, strict=True)]
        )
        with self._lock:
            self._batches.append(found)
            self._abstained.append(sum([verdict.abstained for verdict in verdicts]))
            if len(self._batches) < self._policy.abstain_window or not any(self._abstained):
                return
            nodes: dict[int, Counter[Outcome]] = {}
            for counts in self._batches:
                for (node, outcome), count in counts.items():
                    nodes.setdefault(node, Counter())[outcome] += count
        left = _without_worst(list(nodes.values()))
        abstained = sum(count[Outcome.ABSTAIN] for count in left)
        total = sum(map(_not_rejected, left))
        if abstained > self._policy.max_abstain_rate * total:
            causes = Counter(_abstained_by(v) for v in verdicts if v.abstained).most_common(3)
            aside = len(nodes) - len(left)
            without = f", without {aside} of {len(nodes)} nodes," if aside else ""
            raise AbstainError(
                f"the guard abstained on {abstained} of {total} completions that it did not reject "
                f"in the last {self._policy.abstain_window} batches{without} (max_abstain_rate="
                f"{self._policy.max_abstain_rate}); last causes: {dict(causes)}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return AbstainWindow, (self._policy,)  # a worker starts its own count, with its own lock


def _not_rejected(count: Counter[Outcome]) -> int:
    """The number of acceptances and abstentions. Rejections do not count, because senders could
    hide an outage by causing them at will."""
    return count.total() - count[Outcome.REJECT]


def _without_worst(nodes: list[Counter[Outcome]]) -> list[Counter[Outcome]]:
    """The outcome counts of all nodes except those with the highest shares of abstentions.

    The worst node is excluded, then further nodes as long as the excluded nodes together sent less
    than half of the completions: a minority that invents names still sends only a minority of
    completions. Nodes whose completions were all rejected are excluded too.
    """
    judged = [count for count in nodes if _not_rejected(count)]
    if len(judged) < 2:
        return judged
    judged.sort(key=lambda count: count[Outcome.ABSTAIN] / _not_rejected(count))
    half = sum(count.total() for count in judged) / 2
    aside = judged.pop().total()
    while len(judged) > 1 and aside + judged[-1].total() < half:
        aside += judged.pop().total()
    return judged


def _abstained_by(verdict: Verdict) -> str:
    """The verifier that abstained and the cause; in a stack of six, a cause alone is no help."""
    for member in verdict.members:
        if member.abstained and member.cause is verdict.cause:
            return _abstained_by(member)
    return f"{verdict.verifier}: {verdict.cause.value}"
