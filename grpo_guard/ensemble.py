"""Several verifiers, one verdict.

Each member is called under supervision of its own, so that one that fails abstains alone. A member
that is NOT_APPLICABLE is left out of the combination; where no member applies, neither does the
ensemble.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from grpo_guard.calibrated import decided_by_p
from grpo_guard.completion import Completion
from grpo_guard.p_values import bonferroni, normalised_shares, ruger
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Finding, Outcome, Verdict
from grpo_guard.verifier import CompletionVerifier, Only


class Ensemble(CompletionVerifier):
    """Base of the combinators: runs the members and combines row by row."""

    timeout = None  # the members have their own

    # Whether nothing but its members makes it what it is, so that a chain of it can be one.
    plain = True

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

    @property
    def author_can_abstain(self) -> str | None:
        return next((way for member in self.members if (way := member.author_can_abstain)), None)

    @property
    def steps_aside(self) -> bool:
        return all(member.steps_aside for member in self.members)

    def check(self) -> None:
        for member in self.members:
            member.check()

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        columns = [self._heard(i, batch) for i in range(len(self.members))]
        return [self._combine(row) for row in zip(*columns, strict=True)]

    def _heard(self, index: int, batch: Sequence[Completion]) -> list[Verdict]:
        """What one member says, as this ensemble counts it."""
        return supervised(self.members[index], batch)

    def _combine(self, row: Sequence[Verdict]) -> Verdict:
        applicable = _applicable(row)
        if not applicable:
            return Verdict(Outcome.ABSTAIN, Cause.NOT_APPLICABLE, self.name, members=tuple(row))
        outcome = self.decide(applicable)
        deciding = [v for v in applicable if v.outcome is outcome]
        # One member's "malformed" outweighs another's judgement: `~` turns judgements round, and
        # garbage would pass behind it because somebody else rejected it too.
        causes = [v.cause for v in deciding if v.cause is not Cause.JUDGED]
        # A rule that rejects without a p-value leaves the whole without one: the others' would
        # let a budget further up overrule it.
        ruled = outcome is Outcome.REJECT and any(v.p_value is None for v in deciding)
        return Verdict(
            outcome,
            causes[0] if causes else Cause.JUDGED,
            self.name,
            p_value=None if ruled else self.p_value(row),
            findings=_merged_findings(deciding),
            seconds=sum(v.seconds for v in row),
            members=tuple(row),
        )

    @abstractmethod
    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        """The outcome for one completion from its applicable verdicts (at least one)."""

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        """A combined p-value that stays valid under any dependence, or None.

        Args:
            row: The members' verdicts on one completion, in the members' order; those that are not
                applicable are among them.
        """
        return None


class AllOf(Ensemble):
    """Accepts what every member accepts: one REJECT rejects, else one ABSTAIN abstains.

    Without ``alpha`` each member decides at its own level, and the false-positive rate is at most
    the sum of theirs. With it, the members' p-values decide and share one budget: a member rejects
    where ``p <= alpha * share``, whatever level it has itself, so that honest work is rejected with
    chance ``alpha`` at most, however the members depend on each other. A member without p-values
    then still rejects by its own rule, on top of the budget; `Calibrated` gives it one. What the
    author causes otherwise (malformed, overlong, screened) always rejects.

    The combined p-value is Bonferroni's over the shares.

    Args:
        members: At least one.
        alpha: The budget that they share, in (0, 1); None = each has its own.
        shares: Relative weights, one per member; None = equal.

    Raises:
        ValueError: a value is out of range, or a member's smallest possible p-value is above its
            share of ``alpha``: it could never reject.
    """

    def __init__(
        self,
        *members: CompletionVerifier,
        alpha: float | None = None,
        shares: Sequence[float] | None = None,
        name: str | None = None,
    ) -> None:
        # Shares are given to the members as they stand.
        super().__init__(*(members if shares else _flattened(type(self), members)), name=name)
        kind = type(self).__name__
        if alpha is not None and not 0 < alpha < 1:
            raise ValueError(f"{kind}.alpha: expected a number in (0, 1), got {alpha!r}")
        self.alpha = alpha
        self.plain = alpha is None and shares is None
        self.shares = normalised_shares(shares, len(self.members), f"{kind}.shares")
        for member, share in zip(self.members, self.shares, strict=True):
            least = _smallest_p(member)
            if alpha is not None and least > alpha * share:
                raise ValueError(
                    f"{kind}.alpha: expected {member.name}'s share, {alpha * share:.2g}, to be at "
                    f"least its smallest p-value, {least:.2g}; calibrate it on more honest "
                    f"completions, or give it a larger share, got alpha={alpha!r}"
                )

    @property
    def smallest_p(self) -> float:
        """The p-value below which some member's rejection never takes this ensemble's.

        The largest over the members, not the smallest: an ensemble further up would otherwise be
        content with one member that can reject, and acquit whatever the others reject.
        """
        each = zip(self.members, self.shares, strict=True)
        return min(1.0, max(_smallest_p(member) / share for member, share in each))

    def _heard(self, index: int, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts = super()._heard(index, batch)
        if self.alpha is None:
            return verdicts
        return [decided_by_p(verdict, self.alpha * self.shares[index]) for verdict in verdicts]

    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        outcomes = {v.outcome for v in verdicts}
        for outcome in (Outcome.REJECT, Outcome.ABSTAIN):
            if outcome in outcomes:
                return outcome
        return Outcome.ACCEPT

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        return bonferroni([v.p_value for v in row], self.shares[: len(row)])


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

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        values = [v.p_value for v in _applicable(row)]
        return max(v for v in values if v is not None) if None not in values else None

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the members together can give."""
        return max(_smallest_p(member) for member in self.members)


class Vote(Ensemble):
    """Rejects when at least ``rejects`` members reject (default: more than half).

    Abstains exactly when the abstaining members could still have tipped the vote: an outage of
    some judges then never turns a minority into a majority. The p-value is Rüger's, and None unless
    every applicable member has one.

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
        needed = self._needed(verdicts)
        against = sum(v.rejected for v in verdicts)
        if against >= needed:
            return Outcome.REJECT
        undecided = sum(v.abstained for v in verdicts)
        return Outcome.ACCEPT if against + undecided < needed else Outcome.ABSTAIN

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        verdicts = _applicable(row)
        values = [v.p_value for v in verdicts if v.p_value is not None]
        return ruger(values, self._needed(verdicts)) if len(values) == len(verdicts) else None

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the members together can give."""
        n = len(self.members)
        return ruger([_smallest_p(m) for m in self.members], self.rejects or n // 2 + 1)

    def _needed(self, verdicts: Sequence[Verdict]) -> int:
        # Members that are not applicable have left the electorate; never ask for more than it has.
        return min(self.rejects or len(verdicts) // 2 + 1, len(verdicts))


class Cascade(AllOf):
    """`AllOf` in order, where a completion once rejected is not shown to the later members.

    Put the cheap verifiers first: the expensive ones only see what is left. A later member that
    compares the completions of a group is then spared the poison among them.
    """

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        rows: list[list[Verdict]] = [[] for _ in batch]
        left = list(range(len(batch)))
        for member in range(len(self.members)):
            heard = self._heard(member, [batch[i] for i in left])
            for i, verdict in zip(left, heard, strict=True):
                rows[i].append(verdict)
            left = [i for i in left if not rows[i][-1].rejected]
        return [self._combine(row) for row in rows]


def _smallest_p(verifier: CompletionVerifier) -> float:
    """The smallest p-value that a verifier can give; 0 where nothing bounds it."""
    while isinstance(verifier, Only):
        verifier = verifier.member
    return float(getattr(verifier, "smallest_p", 0.0))


def _applicable(row: Sequence[Verdict]) -> list[Verdict]:
    return [v for v in row if v.cause is not Cause.NOT_APPLICABLE]


def _merged_findings(verdicts: Sequence[Verdict]) -> tuple[Finding, ...]:
    """The same finding from two members is reported once, in the words of the first.

    Two findings are the same where their kind and their place are; without a place, where their
    words are too.
    """
    merged: dict[object, Finding] = {}
    for finding in (f for v in verdicts for f in v.findings):
        places = (finding.char_span, finding.token_span)
        words = finding.message if places == (None, None) else ""
        merged.setdefault((finding.kind, *places, words), finding)
    return tuple(merged.values())


def _flattened(
    kind: type[Ensemble], members: Sequence[CompletionVerifier]
) -> list[CompletionVerifier]:
    """``a & b & c`` is one AllOf of three, so that Bonferroni counts three."""
    flat: list[CompletionVerifier] = []
    for member in members:
        if type(member) is kind and isinstance(member, Ensemble) and member.plain:
            flat.extend(member.members)
        else:
            flat.append(member)
    return flat
