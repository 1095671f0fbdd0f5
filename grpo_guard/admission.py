"""What is settled of a batch before verifiers are asked: whose it is, and whose words are in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_guard.completion import Completion, shown
from grpo_guard.environment import EnvironmentVerifier, believed
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Finding, Verdict, noted

if TYPE_CHECKING:
    from grpo_guard.identity.gate import Identity
    from grpo_guard.references import References


@dataclass(frozen=True, slots=True)
class Admitted:
    """A batch as verifiers see it.

    Args:
        batch: The completions under the nodes that they are really from, with the task's own
            references; what tools said is believed where the environment says it too.
        known: Their verdicts, as far as they have one.
        notes: What their verdicts are to mention.
    """

    batch: list[Completion]
    known: list[Verdict | None]
    notes: list[Finding | None]

    @property
    def open(self) -> list[Completion]:
        """Those without a verdict, in order."""
        return [c for c, known in zip(self.batch, self.known, strict=True) if known is None]

    def verdicts(self, said: Sequence[Verdict]) -> list[Verdict]:
        """One verdict per completion, from those of `open`."""
        left = iter(said)
        verdicts = [next(left) if known is None else known for known in self.known]
        return list(map(noted, verdicts, self.notes)) if any(self.notes) else verdicts


def admit(
    batch: Sequence[Completion],
    given: Sequence[Verdict | None] | None = None,
    *,
    identity: Identity | None = None,
    references: References | None = None,
    environment: EnvironmentVerifier | None = None,
) -> Admitted:
    """Ask who sent each completion, then what its task says, then what its tools said.

    Args:
        batch: Any number of completions.
        given: Verdicts that the caller has already, one or None per completion; None = none.
        identity, references, environment: As for `Guard`.

    Raises:
        ValueError: not one of ``given`` per completion.
        TypeError: something given is no verdict.
    """
    batch = list(batch)
    known: list[Verdict | None] = [None] * len(batch)
    if given is not None:
        known = _checked(given, len(batch))
    notes: list[Finding | None] = [None] * len(batch)
    if identity is not None:
        batch, known = identity.admit(batch, known)
    if references is not None:
        batch, known, notes = references.check(batch, known)
    if environment is not None:
        _ask(environment, batch, known)
    return Admitted(batch, known, notes)


def _ask(
    environment: EnvironmentVerifier, batch: list[Completion], known: list[Verdict | None]
) -> None:
    """Believe what is given where the environment says the same; else it has a verdict on it."""
    chosen = [i for i, c in enumerate(batch) if c.given and not c.given.known and known[i] is None]
    said = supervised(environment, [batch[i] for i in chosen])
    for i, verdict in zip(chosen, said, strict=True):
        if verdict.accepted:
            batch[i] = believed(batch[i])
        else:
            known[i] = verdict


def _checked(given: Sequence[Verdict | None], expected: int) -> list[Verdict | None]:
    if len(given) != expected:
        raise ValueError(f"given: expected {expected}, one per completion, got {len(given)}")
    for verdict in given:
        if not isinstance(verdict, Verdict | None):
            raise TypeError(f"given: expected a Verdict or None, got {shown(verdict)}")
    return list(given)
