"""The code that runs in an actor: a verifier, or a verifier's rules, on parts of batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.p_values import smallest_p
from grpo_guard.core.scope import Runnable
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.workers.plan import Reading as Reading
from grpo_guard.guard.workers.plan import Rule as Rule
from grpo_guard.guard.workers.plan import read_part, reads_alone

Make: TypeAlias = Callable[[], CompletionVerifier]


@dataclass(frozen=True, slots=True)
class Described:
    """Properties of a worker's verifier that the calling process needs. ``needs_whole`` is the
    reason why the verifier needs whole batches, or None. ``names`` are those whose verdicts a
    `Reading` holds, in order: the verifier's own, or else those of its rules that read each
    completion alone."""

    name: str
    needs: str | None
    steps_aside: bool
    smallest_p: float
    needs_whole: str | None
    names: tuple[str, ...]
    compares_ids: bool = False


def readers(verifier: CompletionVerifier) -> list[Rule]:
    """Return the rules inside a verifier that read each completion alone, without duplicates. The
    reading of a `RecurrenceVerifier` is included, but is not worth sending by itself."""
    inner = {id(one): one for one in inner_verifiers(verifier)}.values()
    found = [one for one in inner if isinstance(one, Rule) and reads_alone(one)]
    return found if any(isinstance(one, RuleVerifier) for one in found) else []


def needs_whole(verifier: CompletionVerifier) -> str | None:
    """Return why a verifier needs whole batches, from its scope; None if parts are enough."""
    if verifier.scope == "completion":
        return None
    for member in getattr(verifier, "members", ()):
        if member.scope == verifier.scope:
            return needs_whole(member)
    if verifier.scope == "history":
        return f"{verifier.name} remembers earlier completions (scope 'history')"
    return f"{verifier.name} compares the completions of a batch (scope 'batch')"


class Readings:
    """Workers' results for a batch, which the rules, in the order of a `Reading`, use instead of
    reading the texts; any other completion is read in this process. Implements
    `supervise.Elsewhere`."""

    def __init__(
        self, rules: Sequence[Rule], batch: Sequence[Completion], found: Sequence[Reading]
    ) -> None:
        self._places = {id(rule.reading): i for i, rule in enumerate(rules)}
        self._found = {id(c): reading for c, reading in zip(batch, found, strict=True)}

    def verdicts(self, verifier: Runnable, batch: Sequence[Completion]) -> list[Verdict] | None:
        """Return the results for one rule; None if the rule has to read the texts itself."""
        place = self._places.get(id(verifier))
        if place is None or any(id(completion) not in self._found for completion in batch):
            return None
        return [self._found[id(completion)][place] for completion in batch]


class Worker:
    """A worker whose verifier ``make`` creates in its actor; ``alone`` as for `RayVerifier`."""

    def __init__(self, make: Make, alone: bool | None = None) -> None:
        self._make, self._alone = make, alone

    def start(self) -> Described:
        """Create the verifier, and check that everything it needs is available; raises TypeError if
        ``make`` returned something else."""
        one = self._make()
        if not isinstance(one, CompletionVerifier):
            raise TypeError(f"make: expected it to return a CompletionVerifier, got {one!r:.80}")
        one.check()
        why = None if self._alone else needs_whole(one)
        if self._alone is False:
            why = why or f"{one.name} is read for another"
        rules = readers(one)
        # A rule's reading has the rule's own name and time-out.
        self._asked: list[Runnable] = [one] if why is None else [rule.reading for rule in rules]
        return Described(
            one.name, one.needs, one.steps_aside, smallest_p(one),
            why, tuple(each.name for each in self._asked), one.compares_ids,
        )  # fmt: skip

    def read(self, part: Sequence[Completion]) -> list[Reading]:
        """Return the results for each completion, in order."""
        return read_part(self._asked, part)
