"""The verifier interface, and how verifiers compose.

``a & b`` accepts what both accept, ``a | b`` what either accepts, ``~a`` what ``a`` judged unfit,
``only(a, task="code")`` looks at some completions and steps aside for the rest. The shape follows
tenacity's stop strategies: small objects with operators, no configuration language.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from grpo_guard.completion import Completion
from grpo_guard.verdict import Cause, Outcome, Verdict, abstain


class CompletionVerifier(ABC):
    """Says of each completion whether it may earn its reward.

    Subclasses implement `verify`. They return verdicts and keep none of them: a verifier has
    configuration, not results, so that one object can serve several threads. They need not guard
    against their own failures: whoever calls a verifier does so through `supervise.supervised`,
    which turns exceptions, wrong counts and hangs into ABSTAIN.

    Attributes:
        name: Stands in verdicts, metrics and reports.
        needs: What it needs beside the completions, in words for a list; None = nothing.
        timeout: Seconds one call of `verify` may take before it counts as hung; None = unlimited.
    """

    name: str = "verifier"
    needs: str | None = None
    timeout: float | None = 600.0

    @property
    def author_can_abstain(self) -> str | None:
        """How a completion's author can make this verifier abstain, and the remedy; None = no way.

        Under ``Policy(on_abstain="pass")`` such an abstention would be a reward at will, so `Guard`
        refuses the two together. Override it where a verifier of your own can be made to abstain.
        """
        return None

    @property
    def steps_aside(self) -> bool:
        """Whether it may find a completion NOT_APPLICABLE, for what its sender can claim or omit.

        Combinators leave such a verdict out; where every member steps aside, nobody has looked.
        """
        return False

    @abstractmethod
    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in the same order.

        Args:
            batch: Any number of completions, of any groups and nodes. Not to be changed.
        """

    def check(self) -> None:  # noqa: B027 (most verifiers need nothing from outside)
        """Find out whether what the verifier needs is there, before anything depends on it.

        A judge asks its server here, so that a wrong key is one clear error before a run and not
        an abstention for each completion. A guard from a file is checked when it is built.

        Raises:
            Exception: it is not; with the remedy.
        """

    async def averify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """`verify` without blocking the running loop."""
        return await asyncio.to_thread(self.verify, batch)

    def __and__(self, other: CompletionVerifier) -> CompletionVerifier:
        from grpo_guard.ensemble import AllOf

        return AllOf(self, other) if isinstance(other, CompletionVerifier) else NotImplemented

    def __or__(self, other: CompletionVerifier) -> CompletionVerifier:
        from grpo_guard.ensemble import AnyOf

        return AnyOf(self, other) if isinstance(other, CompletionVerifier) else NotImplemented

    def __invert__(self) -> CompletionVerifier:
        return Not(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Not(CompletionVerifier):
    """Accepts what its member judged unfit, and rejects what the member accepts.

    Only a judgement is turned round. A completion that is malformed or overlong stays rejected:
    otherwise an attacker would earn rewards behind ``~`` by sending garbage.
    """

    timeout = None

    def __init__(self, member: CompletionVerifier) -> None:
        self.member = member
        self.name = f"not({member.name})"

    @property
    def author_can_abstain(self) -> str | None:
        return self.member.author_can_abstain

    @property
    def steps_aside(self) -> bool:
        return self.member.steps_aside

    def check(self) -> None:
        self.member.check()

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        from grpo_guard.supervise import supervised

        return [self._negate(verdict) for verdict in supervised(self.member, batch)]

    def _negate(self, verdict: Verdict) -> Verdict:
        outcome = verdict.outcome
        if verdict.cause is Cause.JUDGED:
            outcome = Outcome.REJECT if verdict.accepted else Outcome.ACCEPT
        # The p-value speaks of the member's hypothesis, not of its opposite.
        return replace(
            verdict, outcome=outcome, verifier=self.name, p_value=None, members=(verdict,)
        )


class Only(CompletionVerifier):
    """Runs its member on the completions that match; the others are NOT_APPLICABLE.

    Combinators skip such a verdict. Alone at the top of a guard it is an abstention, so that
    completions which nothing looked at do not earn their reward by accident.
    """

    timeout = None

    def __init__(self, member: CompletionVerifier, matches: Callable[[Completion], bool]) -> None:
        self.member = member
        self.matches = matches
        self.name = member.name

    @property
    def author_can_abstain(self) -> str | None:
        return self.member.author_can_abstain

    @property
    def steps_aside(self) -> bool:
        return True

    def check(self) -> None:
        self.member.check()

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        from grpo_guard.supervise import supervised

        applies = [bool(self.matches(completion)) for completion in batch]
        verdicts = iter(
            supervised(self.member, [c for c, yes in zip(batch, applies, strict=True) if yes])
        )
        return [
            next(verdicts) if yes else abstain(self.name, Cause.NOT_APPLICABLE) for yes in applies
        ]


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
