"""From a batch and its verdicts to what the ledger keeps: counts, finding kinds, short excerpts.

Everything here was written by strangers. Names and excerpts are bounded, and stored as bytes: a
lone surrogate, or a name of a megabyte, must not stop the record of a whole batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from grpo_guard.completion import Completion
from grpo_guard.rollouts import rollout_of
from grpo_guard.verdict import (
    BARRING_CAUSES,
    NOT_CHECKED,
    Cause,
    Finding,
    Outcome,
    Verdict,
    applicable_of,
)

Name = TypeVar("Name")
STANDING_KIND = "node_standing"
STANDING_VERIFIER = "standing"
FREQUENT_VERIFIER = "frequent_findings"
RECURRENCE_VERIFIER = "recurrence"
FALSE_SUMS_VERIFIER = "false_sums"
# A rejection based on a node's record is no evidence against it: once accused, it would stay
# accused. An unchecked completion is no evidence for it. A wrong sum is left out for every node.
_OF_RECORD = (STANDING_VERIFIER, FREQUENT_VERIFIER, FALSE_SUMS_VERIFIER, NOT_CHECKED)
_WORST_FIRST: Final = (Outcome.REJECT, Outcome.ABSTAIN, Outcome.ACCEPT)
RECURRING = "recurring_"
MAX_NAME_BYTES = 200
MAX_KIND_CHARACTERS = 64
EXCERPT_CHARACTERS = 80
MAX_PHRASE_CHARACTERS = 400
MAX_PHRASES_OF_COMPLETION = 8
PIECE = 3
MAX_PIECES = 6
_PUNCTUATION = ".,;:!?\"'()[]{}<>*`"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A piece of a phrase that recurs in a node's work, and the phrase as it began."""

    digest: bytes
    excerpt: bytes


class Entry(NamedTuple):
    """What is kept of one completion. A tuple, which takes a third of the time to make.

    Args:
        node: Its sender, bounded; None where it has none.
        prompt: Digest of the prompt.
        key: Digest that identifies the completion: recorded twice, it counts once.
        outcome: Outcome of the other verifiers; None if none of them was asked.
        kinds: Kinds of the findings for which it was rejected.
        phrases: Recurring phrases found in it.
    """

    node: bytes | None
    prompt: bytes
    key: bytes
    outcome: Outcome | None
    kinds: tuple[str, ...] = ()
    phrases: tuple[Phrase, ...] = ()


@dataclass(frozen=True, slots=True)
class Intake:
    """One batch; ``round`` as the nodes number it, None if it is not given."""

    round: int | None
    entries: list[Entry] = field(default_factory=list)


def intake(
    batch: Sequence[Completion], verdicts: Sequence[Verdict], round: int | None = None
) -> Intake:
    """What is kept of one batch. A rollout in several segments is one entry, see `_joined`.

    Args:
        batch: The completions.
        verdicts: One for each, in order.
        round: Of the batch; None: the one that those claim who sent most of it.

    Raises:
        ValueError: not one verdict per completion.
    """
    if len(batch) != len(verdicts):
        raise ValueError(f"verdicts: expected {len(batch)}, got {len(verdicts)}")
    again: dict[bytes, int] = {}
    verdicts = list(verdicts)  # which keeps each alive: many are one object, and are read once
    outcomes: dict[int, Outcome | None] = {}
    entries = list[Entry]()
    segments: dict[Hashable, list[Entry]] = {}
    for completion, verdict in zip(batch, verdicts, strict=True):
        node, prompt, same, key = mark_of(completion)
        # Two equal completions of one batch are two; the batch sent again is the same batch.
        if count := again.get(same):
            key = _digest(same + count.to_bytes(8, "big"))
        again[same] = 1 + (count or 0)
        if id(verdict) not in outcomes:
            outcomes[id(verdict)] = outcome_of_work(verdict)
        outcome = outcomes[id(verdict)]
        kinds = _kinds(verdict) if outcome is Outcome.REJECT else ()
        phrases = tuple(_phrases(completion, verdict)) if verdict.rejected else ()
        entry = Entry(node, prompt, key, outcome, kinds, phrases)
        if (rollout := rollout_of(completion)) is None:
            entries.append(entry)
        else:
            segments.setdefault(rollout, []).append(entry)
    entries += map(_joined, segments.values())
    return Intake(_claimed(batch) if round is None else round, entries)


def _joined(segments: Sequence[Entry]) -> Entry:
    """One entry for a rollout: its worst outcome, with the findings and phrases of all segments.

    A sender may give one label to all that it sends, and is then counted once. It gains nothing:
    one rejected segment costs it all of them.
    """
    if len(segments) == 1:
        return segments[0]
    outcomes = {entry.outcome for entry in segments}
    phrases = {phrase.digest: phrase for entry in segments for phrase in entry.phrases}
    return Entry(
        segments[0].node,
        min(entry.prompt for entry in segments),  # whichever comes first in the batch
        _digest(b"".join(sorted(entry.key for entry in segments))),
        next((outcome for outcome in _WORST_FIRST if outcome in outcomes), None),
        tuple(sorted({kind for entry in segments for kind in entry.kinds})),
        tuple(phrases[digest] for digest in sorted(phrases)),
    )


def outcome_of_work(verdict: Verdict) -> Outcome | None:
    """The outcome that counts as evidence about the node; None where its work was not judged.

    A ledger's own rejections are no evidence: a node once accused would be accused for ever.
    Where the standing was the last word, those after it in a cascade were not asked, and only the
    cheap ones before it spoke; such a completion counts for nothing.
    """
    # What another than the author can bring about, to harm the name on it, is no evidence.
    if verdict.verifier in _OF_RECORD or verdict.cause in BARRING_CAUSES:
        return None
    # An honest model may repeat itself as no other does. Its phrase costs it the completions that
    # hold it, and not its name; a reader that finds the phrase foreign says so for itself.
    if verdict.verifier == RECURRENCE_VERIFIER and verdict.rejected:
        return Outcome.ACCEPT
    if not verdict.members or not _has_exempt(verdict):
        return verdict.outcome
    last = verdict.members[-1]
    if last.verifier in _OF_RECORD and last.rejected:
        return None
    others = applicable_of(verdict.members)
    outcomes = {outcome_of_work(member) for member in others}
    for outcome in _WORST_FIRST:
        if outcome in outcomes:
            return outcome
    return None


def standing_bars(verdict: Verdict) -> bool:
    """Whether its sender is excluded, or nobody can say: whatever the completion is."""
    if verdict.verifier == STANDING_VERIFIER:
        return verdict.rejected or verdict.cause is Cause.FAULT
    return any(map(standing_bars, verdict.members))


def name_bytes(name: str) -> bytes:
    """A node's name as it is stored: cut, and then told apart by a digest."""
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_NAME_BYTES:
        return data
    return data[: MAX_NAME_BYTES - 40] + b"..." + _digest(data).hex().encode()


def printable(data: bytes) -> str:
    """Stored bytes for a terminal: control characters, and those that turn text round, escaped."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def largest(sent: Mapping[Name, float]) -> list[Name]:
    """Who sent the most: at least three, and at least half of everything, with all who tie.

    Neither names that were invented for a completion each nor one name that sends without end are a
    majority of these.
    """
    chosen: list[Name] = []
    half, together, least = sum(sent.values()) / 2, 0.0, 0.0
    for name, count in sorted(sent.items(), key=lambda item: -item[1]):
        if len(chosen) >= 3 and together >= half and count < least:
            break
        chosen.append(name)
        together, least = together + count, count
    return chosen


def _claimed(batch: Sequence[Completion]) -> int | None:
    """The median of the claims, one vote each of `largest`: no minority can move the round.

    Nor can it bring a round where most nodes claim none: one that always said 0 would have each
    batch taken for the same round, and no evidence would ever add up.
    """
    sent = Counter(completion.node for completion in batch)
    claims = defaultdict[str | None, Counter[int]](Counter)
    for completion in batch:
        if completion.round is not None:
            claims[completion.node][completion.round] += 1
    named: Counter[str | None] = Counter(
        {node: count for node, count in sent.items() if node is not None}
    )
    voters = largest(named or sent)
    votes = sorted(min(c, key=lambda r: (-c[r], r)) for n in voters if (c := claims.get(n)))
    return votes[(len(votes) - 1) // 2] if 2 * len(votes) > len(voters) else None


def _kinds(verdict: Verdict) -> tuple[str, ...]:
    kinds = {f.kind[:MAX_KIND_CHARACTERS] for f in verdict.findings if f.kind != STANDING_KIND}
    cleaned = {k.encode("utf-8", "backslashreplace").decode() for k in kinds}
    return tuple(sorted(cleaned)) or (verdict.cause.value,)


def _phrases(completion: Completion, verdict: Verdict) -> Iterator[Phrase]:
    """Pieces of `PIECE` words of the recurring phrases, so that longer and shorter ones meet."""
    found: dict[bytes, Phrase] = {}
    findings = [f for f in verdict.findings if f.kind.startswith(RECURRING)]
    for finding in findings[:MAX_PHRASES_OF_COMPLETION]:
        words = _flagged(completion.text, finding).split()
        excerpt = " ".join(words)[:EXCERPT_CHARACTERS].encode("utf-8", "backslashreplace")
        for start in range(max(1, min(len(words) - PIECE + 1, MAX_PIECES))):
            piece = " ".join(words[start : start + PIECE]).casefold().strip(_PUNCTUATION)
            if piece:
                digest = _digest(piece.encode("utf-8", "surrogatepass"))
                found.setdefault(digest, Phrase(digest, excerpt))
    yield from found.values()


def _flagged(text: str, finding: Finding) -> str:
    if finding.char_span is None:
        return ""
    start, end = finding.char_span
    return text[start : min(end, start + MAX_PHRASE_CHARACTERS)]


def _has_exempt(verdict: Verdict) -> bool:
    exempt = verdict.verifier in _OF_RECORD or verdict.verifier == RECURRENCE_VERIFIER
    return exempt or any(map(_has_exempt, verdict.members))


def _prompt(completion: Completion) -> bytes:
    prompt = completion.prompt
    if not isinstance(prompt, str):
        try:
            prompt = repr([(m.get("role"), repr(m.get("content"))) for m in prompt])
        except (RecursionError, ValueError):
            # Nested too deeply, or a number too long to be written: one such prompt must not cost
            # the record of a whole batch.
            prompt = f"{len(prompt)} messages that cannot be written"
    return prompt.encode("utf-8", "surrogatepass")


def mark_of(completion: Completion) -> tuple[bytes | None, bytes, bytes, bytes]:
    """A completion's node, and digests of its prompt, of all that it is, and of the first like it.

    Kept in it, since several memories ask about the same object: the ledger, and each rule that
    counts.
    """
    try:
        return completion.mark
    except AttributeError:
        node = None if completion.node is None else name_bytes(completion.node)
        prompt = _digest(_prompt(completion))
        same = _key(completion, prompt)
        mark = node, prompt, same, _digest(same + bytes(8))
        object.__setattr__(completion, "mark", mark)
        return mark


def _key(of: Completion, prompt: bytes) -> bytes:
    # A slot says which of a node's completions it is. Nobody signs a group: whoever sends another's
    # work again, under another group each time, must not have it counted each time.
    group = of.group if of.slot is None else None
    parts = (of.round, of.node, group, of.slot, of.completion_ids)
    data = repr(parts).encode("utf-8", "backslashreplace")
    text = of.text.encode("utf-8", "surrogatepass")
    return _digest(_digest(data) + prompt + _digest(text))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
