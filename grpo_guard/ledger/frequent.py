"""`FrequentFindings`: what one completion may do, and a node may not do again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_guard.completion import Completion
from grpo_guard.ledger.intake import FREQUENT_VERIFIER
from grpo_guard.ledger.ledger import EvidenceLedger
from grpo_guard.ledger.schema import LedgerError
from grpo_guard.ledger.standing import State
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.verifier import CompletionVerifier

FREQUENT_KIND = "frequent_finding"


class FrequentFindings(CompletionVerifier):
    """Rejects completions with a finding that their node has far more often than its peers.

    Some findings must not reject by themselves, since honest work has them too: a wrong sum that is
    taken back, a wrong sum in words. An attacker who sends nothing else teaches it all the same.
    Here a ledger of its own counts such findings per node and round, and what it finds hard is no
    longer forgiven: of that node, the completions that have the finding are rejected, and no
    others. Everything else is the member's verdict, unchanged.

    These rejections are no evidence for the guard's own ledger, as those of `StandingVerifier` are
    none: an honest model with a habit of its own (one that corrects itself where others do not)
    loses the completions that show it and stays in the swarm. Its chance to be found so without
    such a habit is the ledger's ``alpha``.

    Args:
        member: Whose findings count, e.g. `ArithmeticVerifier`.
        ledger: For this alone; not the guard's own.
        kinds: Of the findings that count, such as ``"taken_back"``.

    Raises:
        ValueError: no kind is given.

    Example:
        >>> arithmetic = FrequentFindings(
        ...     ArithmeticVerifier(), EvidenceLedger("sums.sqlite"), kinds=["taken_back"]
        ... )
    """

    timeout = None

    def __init__(
        self, member: CompletionVerifier, ledger: EvidenceLedger, *, kinds: Iterable[str]
    ) -> None:
        self.kinds = frozenset([kinds] if isinstance(kinds, str) else kinds)
        if not self.kinds:
            raise ValueError("FrequentFindings.kinds: expected at least one kind, got none")
        self.member = member
        self.ledger = ledger
        self.name = member.name

    def check(self) -> None:
        self.member.check()

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """The member's verdicts, and rejections of what a node has too often.

        Abstains where the ledger cannot be read, on completions with such a finding alone.
        """
        verdicts = supervised(self.member, batch)
        counted = [self._counted(verdict) for verdict in verdicts]
        noted = [
            verdict if verdict.abstained else reject(self.name) if found else accept(self.name)
            for verdict, found in zip(verdicts, counted, strict=True)
        ]
        self.ledger.record(batch, noted)
        return [
            verdict
            if found is None or verdict.rejected
            else self._judge(completion, verdict, found)
            for completion, verdict, found in zip(batch, verdicts, counted, strict=True)
        ]

    def _counted(self, verdict: Verdict) -> Finding | None:
        return next((f for f in verdict.findings if f.kind in self.kinds), None)

    def _judge(self, completion: Completion, verdict: Verdict, found: Finding) -> Verdict:
        node = completion.node
        if node is None:
            return verdict
        try:
            hard = self.ledger.state(node) is State.HARD
        except LedgerError as error:
            return abstain(self.name, Cause.FAULT, str(error)[:300])
        if not hard:
            return verdict
        message = f"node {node[:80]!r} has {found.kind} more often than its peers, beyond chance"
        said = Finding(FREQUENT_KIND, message, found.char_span, found.token_span)
        return reject(FREQUENT_VERIFIER, findings=(said, *verdict.findings))
