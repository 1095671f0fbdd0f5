"""``only(verifier, task="code")``: a verifier that looks at some completions, not at the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

from grpo_guard.completion import Completion
from grpo_guard.p_values import smallest_p
from grpo_guard.supervise import supervised_each
from grpo_guard.verdict import Cause, Verdict, abstain
from grpo_guard.verifier import CompletionVerifier, Composed


class Only(Composed):
    """Runs its member on the completions that match; the others are NOT_APPLICABLE.

    Combinators skip such a verdict. Alone at the top of a guard it is an abstention, so that
    completions which nothing looked at do not earn their reward by accident.
    """

    def __init__(self, member: CompletionVerifier, matches: Callable[[Completion], bool]) -> None:
        super().__init__(member)
        self.member = member
        self.matches = matches
        self.name = member.name

    @property
    def steps_aside(self) -> bool:
        return True

    @property
    def smallest_p(self) -> float:
        return smallest_p(self.member)

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        applies = [[bool(self.matches(completion)) for completion in batch] for batch in batches]
        chosen = [list(compress(*pair)) for pair in zip(batches, applies, strict=True)]
        aside = abstain(self.name, Cause.NOT_APPLICABLE)
        left = zip(applies, map(iter, supervised_each(self.member, chosen)), strict=True)
        return [[next(said) if yes else aside for yes in each] for each, said in left]


def only(
    verifier: CompletionVerifier,
    *,
    task: str | None = None,
    node: str | None = None,
    when: Callable[[Completion], bool] | None = None,
) -> CompletionVerifier:
    """Restrict a verifier to a task, a node, or whatever ``when`` says; all given must hold.

    Condition on what you know yourself. A task or node that came with the completion is the
    sender's claim: with ``only(checker, task="math")`` it could call its sums "poetry".

    Raises:
        ValueError: no condition was given.
    """
    if task is None and node is None and when is None:
        raise ValueError("only(...): expected task=, node= or when=, got none of them")

    def matches(completion: Completion) -> bool:
        return (
            (task is None or completion.task == task)
            and (node is None or completion.node == node)
            and (when is None or when(completion))
        )

    return Only(verifier, matches)
