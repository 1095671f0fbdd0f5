"""Settle what verifiers rely on: who sent each completion, and which text is the author's own."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.detokenizer import REMEDY, Detokenizer, UnreadableError
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Cause, Finding, Verdict, noted, reject
from grpo_guard.guard.environment import EnvironmentVerifier, with_verified_spans

if TYPE_CHECKING:
    from grpo_guard.guard.references import References
    from grpo_guard.nodes.identity.gate import Identity


logger = logging.getLogger("grpo_guard")


@dataclass(frozen=True, slots=True)
class AdmittedBatch:
    """A batch as verifiers see it.

    Args:
        batch: The completions under their proven nodes, with the task's own references. Tool
            results are marked as known if the environment confirms them.
        known: The verdict on each completion so far; None if it is not settled yet.
        notes: A finding to add to each verdict, or None.
        since: When the review began, on the monotonic clock.
    """

    batch: list[Completion]
    known: list[Verdict | None]
    notes: list[Finding | None]
    since: float = field(default_factory=time.monotonic)

    @property
    def waited(self) -> dict[str, float]:
        """``guard/wait_seconds``, how long the trainer has waited for this review; empty for an
        empty batch."""
        return {"guard/wait_seconds": time.monotonic() - self.since} if self.batch else {}

    @property
    def unsettled(self) -> list[Completion]:
        """The completions without a verdict, in order."""
        return [c for c, known in zip(self.batch, self.known, strict=True) if known is None]

    def verdicts(self, found: Sequence[Verdict]) -> list[Verdict]:
        """One verdict per completion, with its note, given the verdicts on `unsettled`."""
        left = iter(found)
        verdicts = [next(left) if known is None else known for known in self.known]
        return list(map(noted, verdicts, self.notes)) if any(self.notes) else verdicts


def admit(
    batch: Sequence[Completion],
    given: Sequence[Verdict | None] | None = None,
    *,
    identity: "Identity | None" = None,
    references: "References | None" = None,
    environment: EnvironmentVerifier | None = None,
    detokenizer: Detokenizer | None = None,
    ids_unread: bool = False,
    decoded: Sequence[bool] | None = None,
) -> AdmittedBatch:
    """Check the senders of a batch first, then references and token ids, then tool results.

    Args:
        given, decoded: As for `Guard.review`, which raises the same errors.
        identity, references, environment: As for `Guard`.
        detokenizer: Decodes the token ids; if None, text is used as sent.
        ids_unread: Whether to reject completions with ids, because nothing compares them with the
            text.
    """
    since = time.monotonic()
    batch = completions(batch)
    known: list[Verdict | None] = [None] * len(batch)
    if given is not None:
        known = _checked(given, len(batch))
    notes: list[Finding | None] = [None] * len(batch)
    if identity is not None:
        batch, known = identity.admit(batch, known)
    if references is not None:
        batch, known, notes = references.check(batch, known)
    # After the signatures, which cover the completion as sent.
    if detokenizer is not None or ids_unread:
        done = [False] * len(batch) if decoded is None else decoded
        pairs = zip(known, done, strict=True)
        unread = [i for i, (verdict, read) in enumerate(pairs) if verdict is None and not read]
        _read_ids(detokenizer, batch, known, unread, claims=environment is not None)
    if environment is not None:
        _ask(environment, batch, known)
    return AdmittedBatch(batch, known, notes, since)


def certain(
    batch: Sequence[Completion],
    given: Sequence[Verdict | None] | None = None,
    *,
    references: "References | None" = None,
    environment: EnvironmentVerifier | None = None,
    reads_text: bool = True,
    decoded: Sequence[bool] | None = None,
) -> list[Completion]:
    """The completions that `admit` will certainly leave to the verifier, with the task's own
    references. No environment is asked and nothing is recorded, so completions that need either are
    omitted. With ``reads_text=False``, completions with ids are omitted too: their text is decoded
    or refused when the batch is reviewed."""
    found = []
    for i, one in enumerate(completions(batch)):
        theirs = environment is not None and one.given is not None and not one.given.known
        unread = one.completion_ids is not None and not (decoded is not None and decoded[i])
        if (given is not None and given[i] is not None) or theirs or (unread and not reads_text):
            continue
        if references is not None:
            checked = references.check([one], [None])
            if checked.given[0] is not None:
                continue
            one = checked.batch[0]
        found.append(one)
    return found


def completions(batch: object) -> list[Completion]:
    """Return the batch as a list; raises TypeError if an item is not a completion."""
    if isinstance(batch, Completion | str | bytes | Mapping) or not isinstance(batch, Iterable):
        remedy = "; write [completion]" if isinstance(batch, Completion) else ""
        raise TypeError(f"batch: expected a list of completions, got {shown(batch)}{remedy}")
    if hasattr(batch, "to_dict") and hasattr(batch, "columns"):
        raise TypeError(
            f"batch: expected a list of completions, got a {type(batch).__name__}; write "
            '[Completion.from_dict(row) for row in TABLE.to_dict("records")]'
        )
    found = list(batch)
    for i, one in enumerate(found):
        if not isinstance(one, Completion):
            how = "Completion.from_dict(row)" if isinstance(one, Mapping) else "Completion(...)"
            raise TypeError(
                f"batch[{i}]: expected a Completion, got {shown(one)}; write {how} with its prompt "
                "and text"
            )
    return found


def _ask(
    environment: EnvironmentVerifier, batch: list[Completion], known: list[Verdict | None]
) -> None:
    """Mark given spans as known if the environment confirms them; otherwise record its verdict."""
    chosen = [i for i, c in enumerate(batch) if c.given and not c.given.known and known[i] is None]
    verdicts = supervised(environment, [batch[i] for i in chosen])
    for i, verdict in zip(chosen, verdicts, strict=True):
        if verdict.accepted:
            batch[i] = with_verified_spans(batch[i])
        else:
            known[i] = verdict


def _read_ids(
    detokenizer: Detokenizer | None,
    batch: list[Completion],
    known: list[Verdict | None],
    places: Sequence[int],
    *,
    claims: bool,
) -> None:
    """Decode texts from ids; reject completions whose ids the text would hide or nothing checks."""
    for i in places:
        if batch[i].completion_ids is None:
            continue
        if detokenizer is None:
            _log_unread()
            problem = f"completion_ids that no verifier compares with the text; {REMEDY}"
            known[i] = reject("exchange", Cause.MALFORMED, problem)
            continue
        try:
            batch[i] = detokenizer.read(batch[i], claims=claims)
        except UnreadableError as error:
            problem = f"completion_ids: {error}"
            known[i] = reject("exchange", Cause.MALFORMED, problem)


@cache
def _log_unread() -> None:
    logger.error(
        "completions with token ids are rejected, since nothing in this guard compares them with "
        "the text that it reads; %s",
        REMEDY,
    )


def _checked(given: Sequence[Verdict | None], expected: int) -> list[Verdict | None]:
    if len(given) != expected:
        raise ValueError(f"given: expected {expected}, one per completion, got {len(given)}")
    for verdict in given:
        if not isinstance(verdict, Verdict | None):
            raise TypeError(f"given: expected a Verdict or None, got {shown(verdict)}")
    return list(given)
