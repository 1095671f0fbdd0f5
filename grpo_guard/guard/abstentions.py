"""Track the share of abstentions over recent batches, and stop a run that exceeds the limit."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.pages import page
from grpo_guard.core.quoting import counted, printable
from grpo_guard.core.verdict import Cause, Outcome, Verdict
from grpo_guard.guard.policy import AbstainError, Policy

_SHOWN: Final = 300
"""Maximum length of a reason in the error, in characters."""
IN_WORDS: Final = {
    Cause.TIMEOUT: "no answer in time",
    Cause.RATE_LIMITED: "the provider asks for fewer requests",
    Cause.PROVIDER: "the provider failed",
    Cause.CIRCUIT_OPEN: "not asked again for a while, after repeated failures",
    Cause.BUDGET: "the budget is spent",
    Cause.OUT_OF_MEMORY: "out of memory",
    Cause.FAULT: "the verifier itself failed",
    Cause.UNSUPPORTED: "it cannot judge such a completion",
    Cause.UNINFORMATIVE: "too little to judge by",
    Cause.NOT_APPLICABLE: "no verifier was responsible",
}
"""Cause of an abstention -> what it means."""
REMEDIES: Final = {
    Cause.TIMEOUT: "raise the verifier's timeout, or send fewer completions at once",
    Cause.RATE_LIMITED: "lower the judge's concurrency or requests per minute",
    Cause.PROVIDER: "fix what the message names: the judge's base_url, model, key or mode",
    Cause.CIRCUIT_OPEN: "mend what made the earlier calls fail or hang: the first failure names it",
    Cause.BUDGET: "raise the judge's budget",
    Cause.OUT_OF_MEMORY: "raise memory_budget, or score on another device",
    Cause.FAULT: "the log has the traceback",
    Cause.UNSUPPORTED: "the message says what the verifier cannot judge",
    Cause.UNINFORMATIVE: "too little to judge by: send ids, nodes or longer completions",
    Cause.NOT_APPLICABLE: "add a verifier that judges all completions",
}
"""Cause of an abstention -> what to do about it."""


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
        self._failures: deque[Verdict | None] = deque(maxlen=policy.abstain_window)
        """The first abstention of each batch."""
        self._lock = Lock()

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
            self._failures.append(next((v for v in verdicts if v.abstained), None))
            if len(self._batches) < self._policy.abstain_window or not any(self._abstained):
                return
            failures = [_innermost(verdict) for verdict in self._failures if verdict is not None]
            nodes: dict[int, Counter[Outcome]] = {}
            for counts in self._batches:
                for (node, outcome), count in counts.items():
                    nodes.setdefault(node, Counter())[outcome] += count
        left = _without_worst(list(nodes.values()))
        abstained = sum(count[Outcome.ABSTAIN] for count in left)
        total = sum(map(_not_rejected, left))
        if abstained > self._policy.max_abstain_rate * total:
            aside = len(nodes) - len(left)
            worst = "the worst" if aside == 1 else f"the worst {aside}"
            without = f", leaving out {worst} of {len(nodes)} nodes" if aside else ""
            window = self._policy.abstain_window
            raise AbstainError(
                f"the guard abstained on {abstained} of {total} completions that it did not reject "
                f"in the last {f'{window} batches' if window > 1 else 'batch'}{without}; "
                f"Policy(max_abstain_rate={self._policy.max_abstain_rate:g}) allows no more than "
                f"{100 * self._policy.max_abstain_rate:.3g}%. {_why(failures, verdicts)}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return AbstainWindow, (self._policy,)  # a worker starts its own count, with its own lock


def _why(failures: Sequence[Verdict], last: Sequence[Verdict]) -> str:
    """Describe the first of the ``failures`` in the window, what the ``last`` batch abstained for,
    and what to do."""
    first = failures[0]
    # A circuit only opens after other failures.
    cause = next((v.cause for v in failures if v.cause is not Cause.CIRCUIT_OPEN), first.cause)
    counts = Counter(_abstained_by(verdict) for verdict in last if verdict.abstained)
    recent = ", ".join(f"{who} ({counted(n, 'completion')})" for who, n in counts.most_common(3))
    see = f"see {page('abstentions')}"
    now = f" In the last batch: {recent}." if recent else ""
    return (
        f"First failure: {first.verifier}: {printable(first.reason[:_SHOWN]).rstrip('.')}.{now} "
        f"What to do: {REMEDIES.get(cause, see)}"
    )


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


def _innermost(verdict: Verdict) -> Verdict:
    """The abstention of the member that caused it; in a stack of six, a cause alone is no help."""
    for member in verdict.members:
        if member.abstained and member.cause is verdict.cause:
            return _innermost(member)
    return verdict


def _abstained_by(verdict: Verdict) -> str:
    """The verifier that abstained and the cause, in words."""
    by = _innermost(verdict)
    return f"{by.verifier}: {IN_WORDS.get(by.cause, by.cause.value)}"
