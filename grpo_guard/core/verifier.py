"""The verifier interface, and how verifiers compose.

``a & b`` accepts what both accept, ``a | b`` what either accepts, ``~a`` what ``a`` judged unfit,
``only(a, task="code")`` judges some completions and skips the rest.

In an ensemble each member is supervised separately, so that a failing one abstains alone. A member
that is NOT_APPLICABLE is left out of the combination; if none applies, neither does the ensemble.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from grpo_guard.core.arguments import expected_verifier, require_once
from grpo_guard.core.completion import Completion
from grpo_guard.core.naming import name_after_itself
from grpo_guard.core.p_values import bonferroni, budget_shares, decided_by_p, smallest_p
from grpo_guard.core.scope import Runnable, Scope, check_class, widest
from grpo_guard.core.supervise import supervised_each
from grpo_guard.core.verdict import (
    Cause,
    Outcome,
    Verdict,
    applicable_of,
    merged_findings,
    negated,
)


class CompletionVerifier(Runnable):
    """Decides for each completion whether it may earn its reward.

    Subclasses implement `verify`. They return verdicts and keep none of them: a verifier has
    configuration, not results, so that one object can serve several threads. They need not guard
    against their own failures: every call goes through `supervise.supervised`, which turns
    exceptions, wrong counts and hangs into ABSTAIN.

    Attributes:
        name: Appears in verdicts, metrics and reports. A class that declares none is named after
            itself: ``LongWords`` is ``long_words``.
        needs: What it needs besides the completions, as words for a list; None = nothing.
        timeout: Seconds one call of `verify` may take before it counts as hung; None = unlimited.
        scope: What a verdict depends on: ``"completion"``, its own completion alone; ``"batch"``,
            also the others of the call; ``"history"``, also earlier calls.
        reads_text: A verdict depends on the text.
        in_workers: Copies of it may judge in worker processes (`Guard.workers`), if its scope is
            ``"completion"``. For verifiers that can be pickled and keep nothing between calls.
        shows_some: Its members are shown only some of the completions.
    """

    name: str = "verifier"
    needs: str | None = None
    timeout: float | None = 600.0
    scope: Scope = "batch"
    reads_text: bool = True
    in_workers: bool = False
    shows_some: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name_after_itself(cls, CompletionVerifier)
        check_class(cls)

    @property
    def author_can_abstain(self) -> str | None:
        """How a completion's author can make this verifier abstain, and the remedy; None = never.

        Under ``Policy(on_abstain="pass")`` such an abstention would be a reward at will, so `Guard`
        refuses the two together. Override it if your verifier can be made to abstain.
        """
        return None

    @property
    def steps_aside(self) -> bool:
        """Whether it may find a completion NOT_APPLICABLE, for what its sender can claim or omit.

        Combinators skip such a verdict; if every member gives one, nothing has been judged.
        """
        return False

    @property
    def idle_without(self) -> Mapping[str, str]:
        """Fields of `Completion` -> what the verifier leaves undone without them, such as
        ``{"node": "looks at nothing"}``. `Guard` warns once if no completion of a batch has one."""
        return {}

    @property
    def compares_ids(self) -> bool:
        """Whether it rejects every completion whose ids do not decode to its text. If nothing does,
        the text may be clean and the ids poisoned, so `Guard` needs a tokenizer."""
        return False

    @property
    def own_tokenizer(self) -> Any:
        """The policy's tokenizer if the verifier has it; else None."""
        return None

    @abstractmethod
    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in the same order.

        Args:
            batch: Any number of completions, of any groups and nodes. Must not be changed.
        """

    def check(self) -> None:
        """Check that external resources are available, before anything depends on them.

        A judge asks its server here, so that a wrong key is one clear error before a run and not
        an abstention for each completion. A guard built from a file is checked on construction.

        Raises:
            Exception: a resource is not available; the message names the remedy.
        """

    def __and__(self, other: CompletionVerifier) -> CompletionVerifier:
        return AllOf(self, other)

    def __or__(self, other: CompletionVerifier) -> CompletionVerifier:
        return AnyOf(self, other)

    def __invert__(self) -> CompletionVerifier:
        return Not(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Composed(CompletionVerifier):
    """Base of verifiers that are composed of others; each member has a time-out of its own.

    It may compare completions, whatever its members do, so that its scope is a batch at least.

    Raises:
        TypeError: a member is not a verifier.
    """

    timeout = None

    def __init__(self, *members: CompletionVerifier) -> None:
        for member in members:
            if not isinstance(member, CompletionVerifier):
                raise expected_verifier(type(self).__name__, member)
        self.members = members
        self.reads_text = not members or any(member.reads_text for member in members)

    @property
    def author_can_abstain(self) -> str | None:
        return next((way for member in self.members if (way := member.author_can_abstain)), None)

    @property
    def steps_aside(self) -> bool:
        return all(member.steps_aside for member in self.members)

    @property
    def scope(self) -> Scope:  # type: ignore[override]  # others declare it as a class attribute
        return widest(("batch", *(member.scope for member in self.members)))

    @property
    def shares_calls(self) -> bool:
        return all(member.shares_calls for member in self.members)

    @property
    def compares_ids(self) -> bool:
        return bool(self.members) and all(member.compares_ids for member in self.members)

    @property
    def own_tokenizer(self) -> Any:
        own = (member.own_tokenizer for member in self.members)
        return next((tokenizer for tokenizer in own if tokenizer is not None), None)

    def check(self) -> None:
        for member in self.members:
            member.check()


class ByRow(Composed):
    """Base of those whose verdict on a completion depends on their members' verdicts on it."""

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        return widest(member.scope for member in self.members)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return self.verify_each([batch])[0]


class Not(ByRow):
    """Accepts completions that its member judged unfit, and rejects those that it accepts.

    Only judgements are negated. Completions that a spot check skipped stay accepted. Malformed or
    overlong ones stay rejected: otherwise an attacker would earn rewards behind ``~`` by sending
    garbage.
    """

    def __init__(self, member: CompletionVerifier) -> None:
        super().__init__(member)
        self.member = member
        self.name = f"not({member.name})"

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        columns = supervised_each(self.member, batches)
        return [[negated(verdict, self.name) for verdict in column] for column in columns]


class Ensemble(ByRow):
    """Base of the combinators: runs the members and combines their verdicts row by row."""

    # Whether it consists only of its members, so that a chain of it can be flattened.
    plain = True

    def __init__(self, *members: CompletionVerifier, name: str | None = None) -> None:
        if not members:
            raise ValueError(f"{type(self).__name__}(): expected at least one verifier, got none")
        super().__init__(*members)
        require_once(type(self).__name__, members)
        inner = ", ".join(m.name for m in members)
        self.name = name or f"{type(self).__name__.lower().removesuffix('of')}({inner})"

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        columns = [supervised_each(member, batches) for member in self.members]
        return [self._row_by_row(own) for own in zip(*columns, strict=True)]

    def _row_by_row(self, columns: Sequence[Sequence[Verdict]]) -> list[Verdict]:
        """One verdict for each completion, from every member's verdicts."""
        counted = [[self._counted(v, i) for v in column] for i, column in enumerate(columns)]
        # Most rows consist of the same objects, and `counted` keeps all of them alive.
        rows = {tuple(map(id, row)): row for row in zip(*counted, strict=True)}
        combined = {key: self._combine(row) for key, row in rows.items()}
        return [combined[tuple(map(id, row))] for row in zip(*counted, strict=True)]

    def _counted(self, verdict: Verdict, index: int) -> Verdict:
        """The verdict of the member at ``index``, adjusted to this ensemble's budget."""
        return verdict

    def _combine(self, row: Sequence[Verdict]) -> Verdict:
        applicable = applicable_of(row)
        if not applicable:
            return Verdict(Outcome.ABSTAIN, Cause.NOT_APPLICABLE, self.name, members=tuple(row))
        outcome = self.decide(applicable)
        deciding = [v for v in applicable if v.outcome is outcome]
        # One member's "malformed" outweighs another's judgement: `~` negates judgements, and
        # garbage would pass behind it because another member rejected it too.
        judged = Cause.JUDGED
        causes = [v.cause for v in deciding if v.cause is not judged]
        # If a rule rejects without a p-value, the ensemble has none either: with the others'
        # p-values, a budget further up could overrule it.
        ruled = outcome is Outcome.REJECT and any(v.p_value is None for v in deciding)
        return Verdict(
            outcome,
            causes[0] if causes else judged,
            self.name,
            p_value=None if ruled else self.p_value(row),
            findings=merged_findings(deciding),
            seconds=sum(v.seconds for v in row),
            members=tuple(row),
        )

    @abstractmethod
    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        """The outcome for one completion from its applicable verdicts (at least one)."""

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        """A combined p-value that stays valid under any dependence, or None.

        Args:
            row: The members' verdicts on one completion, in the members' order, including those
                that are not applicable.
        """
        return None


class AllOf(Ensemble):
    """Accepts completions that every member accepts: one REJECT rejects, else one ABSTAIN abstains.

    Without ``alpha`` each member decides at its own level, and the false-positive rate is at most
    the sum of theirs. With it, the members' p-values decide and share one budget: a member rejects
    if ``p <= alpha * share``, whatever its own level, so that honest work is rejected with
    probability at most ``alpha`` under any dependence of the members. A member without p-values
    still rejects by its own rule, on top of the budget; `Calibrated` gives it one. Rejections for
    what the author caused (malformed, overlong, screened) always hold.

    The combined p-value is Bonferroni's over the shares.

    Args:
        members: At least one.
        alpha: The shared budget, in (0, 1); None = each member has its own.
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
        # Shares refer to the members as given, so do not flatten them.
        super().__init__(*(members if shares else _flattened(type(self), members)), name=name)
        self.shares = budget_shares(type(self).__name__, self.members, alpha, shares)
        self.alpha = None if alpha is None else float(alpha)
        self.plain = alpha is None and shares is None

    @property
    def smallest_p(self) -> float:
        """The smallest level at which every member can reject.

        The largest over the members, not the smallest: otherwise an outer ensemble would settle
        for one member that can reject, and acquit what the others reject.
        """
        each = zip(self.members, self.shares, strict=True)
        return min(1.0, max(smallest_p(member) / share for member, share in each))

    def _counted(self, verdict: Verdict, index: int) -> Verdict:
        if self.alpha is None:
            return verdict
        return decided_by_p(verdict, self.alpha * self.shares[index])

    @property
    def compares_ids(self) -> bool:
        return any(member.compares_ids for member in self.members)

    def decide(self, verdicts: Sequence[Verdict]) -> Outcome:
        outcomes = {v.outcome for v in verdicts}
        for outcome in (Outcome.REJECT, Outcome.ABSTAIN):
            if outcome in outcomes:
                return outcome
        return Outcome.ACCEPT

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        return bonferroni([v.p_value for v in row], self.shares[: len(row)])


class AnyOf(Ensemble):
    """Accepts completions that any member accepts; else one ABSTAIN abstains; else rejects.

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
        values = [v.p_value for v in applicable_of(row)]
        return max(v for v in values if v is not None) if None not in values else None

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the members together can give."""
        return max(smallest_p(member) for member in self.members)


def _flattened(
    kind: type[Ensemble], members: Sequence[CompletionVerifier]
) -> list[CompletionVerifier]:
    """Flatten ``a & b & c`` and ``(a & b) & (a & c)`` to one AllOf of three, for Bonferroni."""
    flat: list[CompletionVerifier] = []
    for member in members:
        if type(member) is kind and isinstance(member, Ensemble) and member.plain:
            flat.extend(member.members)
        else:
            flat.append(member)
    # A cascade shows a member that comes again other completions.
    if len(flat) == len(members) or kind not in (AllOf, AnyOf):
        return flat
    return list({id(member): member for member in flat}.values())
