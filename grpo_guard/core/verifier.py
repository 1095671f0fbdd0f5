"""The verifier interface, and how verifiers compose.

``a & b`` accepts what both accept, ``a | b`` accepts what either accepts, ``~a`` accepts what ``a``
judged unfit, and ``only(a, task="code")`` judges some completions and skips the rest.

In an ensemble each member is supervised separately, so that a failing member abstains alone. A
member whose verdict is NOT_APPLICABLE is left out of the combination; if no member applies, neither
does the ensemble.
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

    Subclasses implement `verify`. They return verdicts and keep none of them: a verifier holds
    configuration, not results, so that one object can serve several threads. Subclasses need not
    guard against their own failures: every call goes through `supervise.supervised`, which turns
    exceptions, wrong counts and hangs into ABSTAIN.

    Attributes:
        name: Name in verdicts, metrics and reports. A class without a name is named after itself:
            ``LongWords`` becomes ``long_words``.
        needs: What the verifier needs besides the completions, worded for a list; None if it needs
            nothing.
        timeout: Time allowed for one call of `verify` before it counts as hung, in seconds; None
            for no limit.
        scope: What a verdict depends on: ``"completion"``, its own completion alone; ``"batch"``,
            also the other completions in the call; ``"history"``, also earlier calls.
        reads_text: Whether a verdict depends on the text.
        in_workers: Whether copies of the verifier may judge in worker processes (`Guard.workers`)
            if its scope is ``"completion"``. Such a verifier must be picklable and keep no state
            between calls.
        shows_some: Whether the verifier shows its members only some of the completions.
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
        """How a completion's author can make this verifier abstain, and the remedy; None if no
        author can.

        Under ``Policy(on_abstain="pass")`` such an author could earn a reward at will, so `Guard`
        refuses that policy for such a verifier. Override this property if your verifier can be made
        to abstain.
        """
        return None

    @property
    def steps_aside(self) -> bool:
        """Whether the verifier can find a completion NOT_APPLICABLE because of something that the
        sender can claim or omit.

        Combinators skip such a verdict; if all members give it, nothing has been judged.
        """
        return False

    @property
    def idle_without(self) -> Mapping[str, str]:
        """Mapping from fields of `Completion` to what the verifier leaves undone without them, such
        as ``{"node": "looks at nothing"}``. `Guard` warns once if no completion in a batch has such
        a field."""
        return {}

    @property
    def compares_ids(self) -> bool:
        """Whether the verifier rejects every completion whose ids do not decode to its text. If no
        verifier does, clean text could hide poisoned ids, so `Guard` needs a tokenizer."""
        return False

    @property
    def own_tokenizer(self) -> Any:
        """The policy's tokenizer if the verifier has one; otherwise None."""
        return None

    @abstractmethod
    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, in the same order.

        Args:
            batch: Any number of completions, from any groups and nodes. Must not be changed.
        """

    def check(self) -> None:
        """Check that external resources are available, before anything depends on them.

        A judge asks its server here, so that a wrong key is one clear error before a run rather
        than one abstention per completion. A guard built from a file is checked on construction.
        Raises Exception if a resource is not available; the message names the remedy.
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
    """Base class for verifiers composed of other verifiers, each with its own time-out. Raises
    TypeError if a member is not a verifier.

    A composed verifier can compare completions, whatever its members do, so its scope is at least
    ``"batch"``.
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
    """Base class for composed verifiers whose verdict on a completion depends only on their
    members' verdicts on that completion."""

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        return widest(member.scope for member in self.members)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return self.verify_each([batch])[0]


class Not(ByRow):
    """Accepts completions that its member judged unfit, and rejects those that the member accepts.

    Only judgements are negated. Completions that a spot check skipped stay accepted. Malformed or
    overlong completions stay rejected: otherwise an attacker could earn rewards behind ``~`` by
    sending garbage.
    """

    def __init__(self, member: CompletionVerifier) -> None:
        super().__init__(member)
        self.member = member
        self.name = f"not({member.name})"

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        columns = supervised_each(self.member, batches)
        return [[negated(verdict, self.name) for verdict in column] for column in columns]


class Ensemble(ByRow):
    """Base class for the combinators: runs the members and combines their verdicts row by row."""

    # Whether the ensemble has no settings of its own, so that nested ensembles can be flattened.
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
        """Combine the columns of verdicts, one per member, into one verdict per completion."""
        counted = [[self._counted(v, i) for v in column] for i, column in enumerate(columns)]
        # Most rows consist of the same objects, and `counted` keeps all of them alive.
        rows = {tuple(map(id, row)): row for row in zip(*counted, strict=True)}
        combined = {key: self._combine(row) for key, row in rows.items()}
        return [combined[tuple(map(id, row))] for row in zip(*counted, strict=True)]

    def _counted(self, verdict: Verdict, index: int) -> Verdict:
        """Adjust the verdict of the member at ``index`` to this ensemble's error budget."""
        return verdict

    def _combine(self, row: Sequence[Verdict]) -> Verdict:
        applicable = applicable_of(row)
        if not applicable:
            return Verdict(Outcome.ABSTAIN, Cause.NOT_APPLICABLE, self.name, members=tuple(row))
        outcome = self.decide(applicable)
        deciding = [v for v in applicable if v.outcome is outcome]
        # One member's "malformed" outweighs another's judgement: `~` negates judgements, so garbage
        # would otherwise pass behind `~` whenever another member rejected it too.
        judged = Cause.JUDGED
        causes = [v.cause for v in deciding if v.cause is not judged]
        # If a rule rejects without a p-value, the ensemble has no p-value either: with the p-values
        # of the other members, a budget further up could overrule the rule.
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
        """Return the outcome for one completion from its applicable verdicts (at least one)."""

    def p_value(self, row: Sequence[Verdict]) -> float | None:
        """Return a combined p-value that is valid under any dependence of the members, or None.

        Args:
            row: The members' verdicts on one completion, in the members' order, including verdicts
                that are not applicable.
        """
        return None


class AllOf(Ensemble):
    """Accepts completions that every member accepts. One REJECT is enough to reject; otherwise one
    ABSTAIN is enough to abstain.

    Without ``alpha``, each member decides at its own level, and the false-positive rate is at most
    the sum of the members' rates. With ``alpha``, the members' p-values decide and share one
    budget: a member rejects if ``p <= alpha * share``, whatever its own level, so that honest work
    is rejected with probability at most ``alpha`` under any dependence of the members. A member
    without p-values still rejects by its own rule, on top of the budget; `Calibrated` gives it a
    p-value. Rejections for something the author caused (malformed, overlong, screened) always hold.

    The combined p-value is Bonferroni's over the shares. Raises ValueError if a value is out of
    range, or a member could never reject, because its smallest possible p-value is above its share
    of ``alpha``.

    Args:
        members: The verifiers to combine, at least one.
        alpha: The shared error budget, in (0, 1); None if each member decides at its own level.
        shares: Relative weights of the members in the budget, one per member; None for equal
            weights.
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

        This is the maximum over the members, not the minimum. Otherwise an outer ensemble would
        settle for one member that can reject, and accept completions that the others reject.
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
    """Accepts completions that any member accepts; otherwise abstains if any member abstains, and
    rejects if none does.

    The p-value is the largest p-value of the members, or None unless every applicable member has a
    p-value.
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
        """The smallest p-value the members can reach together."""
        return max(smallest_p(member) for member in self.members)


def _flattened(
    kind: type[Ensemble], members: Sequence[CompletionVerifier]
) -> list[CompletionVerifier]:
    """Flatten ``a & b & c`` and ``(a & b) & (a & c)`` into one AllOf of three, so that Bonferroni
    counts each verifier once."""
    flat: list[CompletionVerifier] = []
    for member in members:
        if type(member) is kind and isinstance(member, Ensemble) and member.plain:
            flat.extend(member.members)
        else:
            flat.append(member)
    # In a cascade, a repeated member sees different completions the second time: keep both.
    if len(flat) == len(members) or kind not in (AllOf, AnyOf):
        return flat
    return list({id(member): member for member in flat}.values())
