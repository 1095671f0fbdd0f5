"""`ExclusionVerifier`: rejects the completions of nodes that the ledger has found hard."""

from collections.abc import Mapping, Sequence

from grpo_guard.core.completion import Completion
from grpo_guard.core.quoting import shown_name
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.intake import STANDING_KIND, STANDING_VERIFIER
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.standing import State


class ExclusionVerifier(CompletionVerifier):
    """Rejects completions of hard nodes, whatever they look like.

    Put this verifier first in an `AllOf`. The other members still examine each completion, so that
    evidence keeps accumulating and a node that has stopped cheating is released. The verifier's own
    rejections are not evidence. It makes no sense to use this verifier under ``~`` or in a vote.

    While the ledger is degraded, the current standing of nodes is unknown. Nodes last found hard
    stay rejected; for all others the verifier abstains, which neither blames the sender nor hides
    the problem. With ``last_known=True`` the last known standing applies. If the file is only
    locked, it can still be read, and unwritten evidence is kept in memory: the last known standing
    then applies too, because a hanging process must not stop training.

    Args:
        ledger: The ledger that the guard writes to.
        reject_soft: Whether to reject soft nodes as well, which have about half the evidence
            against them that makes a node hard.
        last_known: Whether to use the last known standing while the ledger is degraded, instead of
            abstaining.
    """

    name = STANDING_VERIFIER
    scope: Scope = "history"  # the ledger's history
    shares_calls = True  # a verdict changes nothing in the ledger
    reads_text = False
    steps_aside = True

    def __init__(
        self, ledger: EvidenceLedger, *, reject_soft: bool = False, last_known: bool = False
    ) -> None:
        self.ledger = ledger
        self.reject_soft = reject_soft
        self.last_known = last_known

    @property
    def idle_without(self) -> Mapping[str, str]:
        return {"node": "cannot reject convicted nodes"}

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        known: dict[str | None, Verdict] = {}
        for node in {completion.node for completion in batch}:
            known[node] = self._verdict(node)
        return [known[completion.node] for completion in batch]

    def _verdict(self, node: str | None) -> Verdict:
        if node is None:
            return abstain(self.name, Cause.NOT_APPLICABLE, "no node, so no standing")
        try:
            state = self.ledger.state(node)
        except LedgerError as error:
            return abstain(self.name, Cause.FAULT, str(error)[:300])
        if state is State.HARD or (state is State.SOFT and self.reject_soft):
            return reject(self.name, findings=(_finding(node, state),))
        if not self.ledger.current and not self.last_known:
            reason = f"the ledger is degraded: {self.ledger.degraded}"
            return abstain(self.name, Cause.FAULT, reason)
        return accept(self.name, findings=(_finding(node, state),) if state is State.SOFT else ())


def _finding(node: str, state: State) -> Finding:
    why = "is rejected more often than its peers, beyond chance"
    if state is State.SOFT:
        why = "is rejected more often than its peers, not yet beyond doubt"
    return Finding(STANDING_KIND, f"node {shown_name(node)} {why}")
