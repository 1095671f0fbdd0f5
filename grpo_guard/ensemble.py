"""Several verifiers, one verdict.

Each member is called under supervision of its own, so that one that fails abstains alone. A member
that is NOT_APPLICABLE is left out of the combination; where no member applies, neither does the
ensemble.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from grpo_guard.completion import Completion
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Finding, Outcome, Verdict
from grpo_guard.verifier import CompletionVerifier


class Ensemble(CompletionVerifier):
    """Base of the combinators: runs the members and combines row by row."""

    timeout = None  # the members have their own

    def __init__(self, *members: CompletionVerifier, name: str | None = None) -> None:
        if not members:
            raise ValueError(f"{type(self).__name__}(): expected at least one verifier, got none")
        for member in members:
            if not isinstance(member, CompletionVerifier):
                raise TypeError(
                    f"{type(self).__name__}(): expected CompletionVerifier members, got {member!r}"
                )
        self.members = members
        inner = ", ".join(m.name for m in members)
        self.name = name or f"{type(self).__name__.lower().removesuffix('of')}({inner})"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        columns = [supervised(member, batch) for member in self.members]
        return [self._combine(row) for row in zip(*columns, strict=True)]

    def _combine(self, row: Sequence[Verdict]) -> Verdict:
        applicable = [v for v in row if v.cause is not Cause.NOT_APPLICABLE]
        if not applicable:
            return Verdict(Outcome.ABSTAIN, Cause.NOT_APPLICABLE, self.name, members=tuple(row))
        outcome = self.decide(applicable)
        deciding = [v for v in applicable if v.outcome is outcome]
        # One member's "malformed" outweighs another's judgement: `~` turns judgements round, and
        # garbage would pass behind it because somebody else rejected it too.
        causes = [v.cause for v in deciding if v.cause is not Cause.JUDGED]
        return Verdict(
            outcome,
            causes[0] if causes else Cause.JUDGED,
            self.name,
            p_value=self.p_value(applicable),
            findings=_merged_findings(deciding),
            seconds=sum(v.seconds for v in row),
            members=tuple(row),
        )

    @abstractmethod
    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        """The outcome for one completion from its applicable verdicts (at least one)."""

    def p_value(self, verdicts: Sequence[Verdict]) -> float | None:
        """A combined p-value that stays valid under any dependence, or None."""
        return None


class AllOf(Ensemble):
    """Accepts what every member accepts: one REJECT rejects, else one ABSTAIN abstains.

    The false-positive rate is at most the sum of the members'. The p-value is Bonferroni's.
    """

    def __init__(self, *members: CompletionVerifier, name: str | None = None) -> None:
        super().__init__(*_flattened(AllOf, members), name=name)

    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        outcomes = {v.outcome for v in verdicts}
        for outcome in (Outcome.REJECT, Outcome.ABSTAIN):
            if outcome in outcomes:
                return outcome
        return Outcome.ACCEPT

    def p_value(self, verdicts: Sequence[Verdict]) -> float | None:
        values = [v.p_value for v in verdicts if v.p_value is not None]
        return min(1.0, len(values) * min(values)) if values else None


class AnyOf(Ensemble):
    """Accepts what any member accepts; else one ABSTAIN abstains; else rejects.

    The p-value is the largest of the members', and None unless every member has one.
    """

    def __init__(self, *members: CompletionVerifier, name: str | None = None) -> None:
        super().__init__(*_flattened(AnyOf, members), name=name)

    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        outcomes = {v.outcome for v in verdicts}
        for outcome in (Outcome.ACCEPT, Outcome.ABSTAIN):
            if outcome in outcomes:
                return outcome
        return Outcome.REJECT

    def p_value(self, verdicts: Sequence[Verdict]) -> float | None:
        values = [v.p_value for v in verdicts]
        return max(v for v in values if v is not None) if None not in values else None


class Vote(Ensemble):
    """Rejects when at least ``rejects`` members reject (default: more than half).

    Abstains exactly when the abstaining members could still have tipped the vote: an outage of
    some judges then never turns a minority into a majority.

    Raises:
        ValueError: ``rejects`` is not between 1 and the number of members.
    """

    def __init__(
        self, *members: CompletionVerifier, rejects: int | None = None, name: str | None = None
    ) -> None:
        super().__init__(*members, name=name)
        if rejects is not None and not 1 <= rejects <= len(members):
            raise ValueError(
                f"Vote.rejects: expected an integer between 1 and {len(members)}, got {rejects!r}"
            )
        self.rejects = rejects

    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        # Members that are not applicable have left the electorate; never ask for more than it has.
        needed = min(self.rejects or len(verdicts) // 2 + 1, len(verdicts))
        against = sum(v.rejected for v in verdicts)
        if against >= needed:
            return Outcome.REJECT
        undecided = sum(v.abstained for v in verdicts)
        return Outcome.ACCEPT if against + undecided < needed else Outcome.ABSTAIN


class Cascade(AllOf):
    """`AllOf` in order, where a completion once rejected is not shown to the later members.

    Put the cheap verifiers first: the expensive ones only see what is left.
    """

    def __init__(self, *members: CompletionVerifier, name: str | None = None) -> None:
        Ensemble.__init__(self, *members, name=name)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        rows: list[list[Verdict]] = [[] for _ in batch]
        left = list(range(len(batch)))
        for member in self.members:
            for i, verdict in zip(left, supervised(member, [batch[i] for i in left]), strict=True):
                rows[i].append(verdict)
            left = [i for i in left if not rows[i][-1].rejected]
        return [self._combine(row) for row in rows]


def _merged_findings(verdicts: Sequence[Verdict]) -> tuple[Finding, ...]:
    """The same finding from two members is reported once."""
    return tuple(dict.fromkeys(f for v in verdicts for f in v.findings))


def _flattened(
    kind: type[Ensemble], members: Sequence[CompletionVerifier]
) -> list[CompletionVerifier]:
    """``a & b & c`` is one AllOf of three, so that Bonferroni counts three."""
    flat: list[CompletionVerifier] = []
    for member in members:
        flat.extend(member.members if type(member) is kind else [member])
    return flat
