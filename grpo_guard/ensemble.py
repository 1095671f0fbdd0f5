"""Ensembles beyond ``&`` and ``|``: a majority, and a cascade of cheap and expensive verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo_guard.completion import Completion
from grpo_guard.p_values import ruger, smallest_p
from grpo_guard.supervise import supervised_each
from grpo_guard.verdict import Outcome, Verdict, applicable_of
from grpo_guard.verifier import AllOf, AnyOf, CompletionVerifier, Ensemble

__all__ = ["AllOf", "AnyOf", "Cascade", "Ensemble", "Vote", "inner_verifiers"]


def inner_verifiers(verifier: CompletionVerifier) -> Iterator[CompletionVerifier]:
    """A verifier and all that it is made of, its ``members``, depth first."""
    yield verifier
    for member in getattr(verifier, "members", ()):
        yield from inner_verifiers(member)


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
        verdicts = applicable_of(row)
        values = [v.p_value for v in verdicts if v.p_value is not None]
        return ruger(values, self._needed(verdicts)) if len(values) == len(verdicts) else None

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the members together can give."""
        n = len(self.members)
        return ruger([smallest_p(m) for m in self.members], self.rejects or n // 2 + 1)

    def _needed(self, verdicts: Sequence[Verdict]) -> int:
        # Members that are not applicable have left the electorate; never ask for more than it has.
        return min(self.rejects or len(verdicts) // 2 + 1, len(verdicts))


class Cascade(AllOf):
    """`AllOf` in order, where a completion once rejected is not shown to the later members.

    Put the cheap verifiers first: the expensive ones only see what is left. A later member that
    compares the completions of a group is then spared the poison among them.
    """

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return self.verify_each([batch])[0]

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        rows: list[list[list[Verdict]]] = [[[] for _ in batch] for batch in batches]
        left = [list(range(len(batch))) for batch in batches]
        for index, member in enumerate(self.members):
            shown = [[b[i] for i in own] for b, own in zip(batches, left, strict=True)]
            said = supervised_each(member, shown)
            for own, places, verdicts in zip(rows, left, said, strict=True):
                for i, verdict in zip(places, verdicts, strict=True):
                    own[i].append(self._counted(verdict, index))
                places[:] = [i for i in places if not own[i][-1].rejected]
        return [[self._combine(row) for row in own] for own in rows]
