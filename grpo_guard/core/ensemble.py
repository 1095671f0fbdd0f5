"""Combinators beyond ``&`` and ``|``: a vote, a cascade, and `only` for selected completions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress

from grpo_guard.core.arguments import whole, worded
from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import ruger, smallest_p
from grpo_guard.core.quoting import shown
from grpo_guard.core.supervise import supervised_each
from grpo_guard.core.verdict import Cause, Outcome, Verdict, abstain, applicable_of
from grpo_guard.core.verifier import AllOf, AnyOf, ByRow, CompletionVerifier, Ensemble

__all__ = ["AllOf", "AnyOf", "Cascade", "Ensemble", "Only", "Vote", "inner_verifiers", "only"]


def inner_verifiers(verifier: CompletionVerifier) -> Iterator[CompletionVerifier]:
    """Yield a verifier and, recursively, its ``members``, depth first."""
    yield verifier
    for member in getattr(verifier, "members", ()):
        yield from inner_verifiers(member)


class Vote(Ensemble):
    """Rejects when at least ``rejects`` members reject (default: more than half).

    Abstains exactly when the abstaining members could still have tipped the vote, so that an outage
    of some judges never turns a minority into a majority. The p-value is Rüger's; it is None unless
    every applicable member has a p-value. Raises ValueError if ``rejects`` is not between 1 and the
    number of members.
    """

    def __init__(
        self, *members: CompletionVerifier, rejects: int | None = None, name: str | None = None
    ) -> None:
        super().__init__(*members, name=name)
        self.rejects = whole(rejects)
        if rejects is not None and not 1 <= (self.rejects or 0) <= len(members):
            raise ValueError(
                f"Vote.rejects: expected an integer between 1 and {len(members)}, got {rejects!r}"
            )

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
        """The smallest p-value the members can reach together."""
        n = len(self.members)
        return ruger([smallest_p(m) for m in self.members], self.rejects or n // 2 + 1)

    def _needed(self, verdicts: Sequence[Verdict]) -> int:
        # Inapplicable members do not vote; never require more votes than there are voters.
        return min(self.rejects or len(verdicts) // 2 + 1, len(verdicts))


class Cascade(AllOf):
    """`AllOf` in sequence: a completion rejected by one member is not shown to later members.

    Put cheap verifiers first, so that expensive ones see only what is left. A later member that
    compares completions within a group then does so without the poison rejected by earlier members.
    """

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        rows: list[list[list[Verdict]]] = [[[] for _ in batch] for batch in batches]
        left = [list(range(len(batch))) for batch in batches]
        for index, member in enumerate(self.members):
            shown = [[b[i] for i in own] for b, own in zip(batches, left, strict=True)]
            found = supervised_each(member, shown)
            for own, places, verdicts in zip(rows, left, found, strict=True):
                for i, verdict in zip(places, verdicts, strict=True):
                    own[i].append(self._counted(verdict, index))
                places[:] = [i for i in places if not own[i][-1].rejected]
        return [[self._combine(row) for row in own] for own in rows]


class Only(ByRow):
    """Runs its member on matching completions; all others get NOT_APPLICABLE.

    Combinators skip such a verdict. At the top level of a guard it is an abstention, so that
    completions that no verifier has judged do not earn a reward by accident.
    """

    shows_some = True
    steps_aside = True
    compares_ids = False  # it compares nothing for completions that do not match

    def __init__(
        self,
        member: CompletionVerifier,
        matches: Callable[[Completion], bool],
        fields: Sequence[str] = (),
    ) -> None:
        super().__init__(member)
        self.member = member
        self.matches = matches
        self.fields = fields
        self.name = member.name

    @property
    def idle_without(self) -> Mapping[str, str]:
        return dict.fromkeys(self.fields, "looks at nothing")

    @property
    def smallest_p(self) -> float:
        return smallest_p(self.member)

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        applies = [[bool(self.matches(completion)) for completion in batch] for batch in batches]
        chosen = [list(compress(*pair)) for pair in zip(batches, applies, strict=True)]
        aside = abstain(self.name, Cause.NOT_APPLICABLE)
        left = zip(applies, map(iter, supervised_each(self.member, chosen)), strict=True)
        return [[next(verdicts) if yes else aside for yes in each] for each, verdicts in left]


@worded
def only(
    verifier: CompletionVerifier,
    *,
    task: str | None = None,
    node: str | None = None,
    when: Callable[[Completion], bool] | None = None,
) -> CompletionVerifier:
    """Restrict a verifier to a task, a node, or a condition ``when``; all conditions must hold.
    Raises ValueError if no condition was given, or TypeError if ``when`` cannot be called.

    Use conditions that you can verify. A task or node that came with the completion is only the
    sender's claim: to evade ``only(checker, task="math")``, the sender could label its sums
    "poetry".
    """
    if task is None and node is None and when is None:
        raise ValueError("only(...): expected task=, node= or when=, got none of them")
    if when is not None and not callable(when):
        raise TypeError(f"only.when: expected a function of a completion, got {shown(when)}")

    def matches(completion: Completion) -> bool:
        return (
            (task is None or completion.task == task)
            and (node is None or completion.node == node)
            and (when is None or when(completion))
        )

    fields = [name for name, value in (("task", task), ("node", node)) if value is not None]
    return Only(verifier, matches, fields)
