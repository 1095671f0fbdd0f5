"""The code that runs in an actor: a verifier, or the rules of one, over parts of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.calibrated import Calibrated
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import Ensemble, Only, inner_verifiers
from grpo_guard.core.p_values import smallest_p
from grpo_guard.core.supervise import Runnable
from grpo_guard.core.verifier import CompletionVerifier, Not
from grpo_guard.guard.workers.plan import Reading as Reading
from grpo_guard.guard.workers.plan import Rule as Rule
from grpo_guard.guard.workers.plan import read_part

Make: TypeAlias = Callable[[], CompletionVerifier]


@dataclass(frozen=True, slots=True)
class Described:
    """Properties of a worker's verifier that the calling process needs.

    Args:
        name, needs, author_can_abstain, steps_aside, smallest_p: Those of the verifier.
        compares: Why the verifier needs whole batches; None = parts are enough.
        names: Whose verdicts a `Reading` holds, in order: the verifier's own if it compares
            nothing, else those of its rules that read each completion alone.
        compares_ids: That of the verifier.
    """

    name: str
    needs: str | None
    author_can_abstain: str | None
    steps_aside: bool
    smallest_p: float
    compares: str | None
    names: tuple[str, ...]
    compares_ids: bool = False


def readers(verifier: CompletionVerifier) -> list[Rule]:
    """Return the rules inside that read each completion alone, without duplicates.

    The reading of a `RecurrenceVerifier` is included, but is not worth sending by itself.
    """
    inner = {id(one): one for one in inner_verifiers(verifier)}.values()
    found = [one for one in inner if isinstance(one, Rule) and one.looks_alone]
    return found if any(isinstance(one, RuleVerifier) for one in found) else []


def compares(verifier: CompletionVerifier) -> str | None:
    """Why a verdict depends, or may depend, on other completions; None = it does not.

    A verifier answers with a property of this name, or with ``judges_alone``; a combination
    depends on its members.
    """
    if hasattr(verifier, "compares"):
        reason: str | None = verifier.compares
        return reason
    # These combine row by row. A user's subclass may not, and then has the property itself.
    if isinstance(verifier, Ensemble | Not | Only | Calibrated):
        return next((why for member in verifier.members if (why := compares(member))), None)
    if verifier.judges_alone:
        return None
    return f"{verifier.name} does not say that it judges each completion alone (judges_alone)"


class Worker:
    """A verifier that is created in its actor.

    Args:
        make: Creates it.
        alone: Whether it judges each completion alone, overriding the verifier itself; False: use
            only its rules. None = ask the verifier.
    """

    def __init__(self, make: Make, alone: bool | None = None) -> None:
        self._make, self._alone = make, alone

    def start(self) -> Described:
        """Create the verifier, and check that everything it needs is available.

        Raises:
            TypeError: ``make`` returned something else.
            Exception: from ``make`` or `CompletionVerifier.check`.
        """
        one = self._make()
        if not isinstance(one, CompletionVerifier):
            raise TypeError(f"make: expected it to return a CompletionVerifier, got {one!r:.80}")
        one.check()
        why = None if self._alone else compares(one)
        if self._alone is False:
            why = why or f"{one.name} is read for another"
        rules = readers(one)
        # A rule's reading has the rule's own name and time-out.
        self._asked: list[Runnable] = [one] if why is None else [rule.reading for rule in rules]
        return Described(
            one.name, one.needs, one.author_can_abstain, one.steps_aside, smallest_p(one),
            why, tuple(each.name for each in self._asked), one.compares_ids,
        )  # fmt: skip

    def read(self, part: Sequence[Completion]) -> list[Reading]:
        """Return the results for each completion, in order."""
        return read_part(self._asked, part)
