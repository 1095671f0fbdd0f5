"""What runs in an actor: a verifier, or the rules of one, over parts of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.calibrated import Calibrated
from grpo_guard.completion import Completion
from grpo_guard.content.rules import RuleVerifier
from grpo_guard.ensemble import Ensemble, Only, inner_verifiers
from grpo_guard.nodes.recurrence.verifier import RecurrenceVerifier
from grpo_guard.p_values import smallest_p
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Verdict
from grpo_guard.verifier import CompletionVerifier, Not

Make: TypeAlias = Callable[[], CompletionVerifier]
Rule: TypeAlias = RuleVerifier | RecurrenceVerifier
Reading: TypeAlias = tuple[Verdict, ...]
"""What was found in one completion: a verdict for each of `names`."""


@dataclass(frozen=True, slots=True)
class Described:
    """A verifier as the process that uses it needs to know it.

    Args:
        name, needs, author_can_abstain, steps_aside, smallest_p: As of the verifier.
        compares: Why it cannot be shown parts of a batch as a whole; None = it can.
        names: Whose verdicts a `Reading` holds, in order: the verifier's own where it compares
            nothing, else those of its rules that read each completion alone.
        compares_ids: As of the verifier.
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
    """The rules within that read each completion alone, each once, whatever they do then.

    What a `RecurrenceVerifier` reads goes along with them, and is not worth the way by itself.
    """
    inner = {id(one): one for one in inner_verifiers(verifier)}.values()
    found = [one for one in inner if isinstance(one, Rule) and one.looks_alone]
    return found if any(isinstance(one, RuleVerifier) for one in found) else []


def compares(verifier: CompletionVerifier) -> str | None:
    """Why a verdict depends on more than its own completion, or may; None = it does not.

    A verifier says it by a property ``compares`` of this kind, or by ``judges_alone``; what is made
    of others is as they are.
    """
    if hasattr(verifier, "compares"):
        said: str | None = verifier.compares
        return said
    # These combine row by row; a class of somebody's own may do otherwise, and says so itself.
    if isinstance(verifier, Ensemble | Not | Only | Calibrated):
        return next((why for member in verifier.members if (why := compares(member))), None)
    if verifier.judges_alone:
        return None
    return f"{verifier.name} does not say that it judges each completion alone (judges_alone)"


class Worker:
    """A verifier that is made where it runs.

    Args:
        make: Makes it.
        alone: Whether it judges each completion alone, whatever it says itself; False: only its
            rules are asked. None = as it says.
    """

    def __init__(self, make: Make, alone: bool | None = None) -> None:
        self._make, self._alone = make, alone

    def start(self) -> Described:
        """Make it, and find out whether what it needs is there.

        Raises:
            TypeError: it is no verifier.
            Exception: as ``make`` and `CompletionVerifier.check`.
        """
        one = self._make()
        if not isinstance(one, CompletionVerifier):
            raise TypeError(f"make: expected it to return a CompletionVerifier, got {one!r:.80}")
        one.check()
        why = None if self._alone else compares(one)
        if self._alone is False:
            why = why or f"{one.name} is read for another"
        rules = readers(one)
        # A rule's own name and time-out stand in what reads for it.
        self._asked = [one] if why is None else [rule.reading for rule in rules]
        return Described(
            one.name, one.needs, one.author_can_abstain, one.steps_aside, smallest_p(one),
            why, tuple(each.name for each in self._asked), one.compares_ids,
        )  # fmt: skip

    def read(self, part: Sequence[Completion]) -> list[Reading]:
        """What is found in each completion, in order."""
        columns = [supervised(each, part) for each in self._asked]
        # Nearly all rows are alike, and one object that stands in many places is sent once.
        rows: dict[tuple[int, ...], Reading] = {}
        found = zip(*columns, strict=True)
        return [rows.setdefault(tuple(map(id, row)), row) for row in found]
