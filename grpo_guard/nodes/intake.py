"""Extract what the ledger keeps from a batch and its verdicts: counts, finding kinds, excerpts.

Everything handled here was written by strangers. Names and excerpts are bounded and stored as
bytes: a lone surrogate or a one-megabyte name must not prevent the recording of a whole batch.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.quoting import shown_name, visible
from grpo_guard.core.rollouts import rollout_of
from grpo_guard.core.verdict import (
    BARRING_CAUSES,
    NOT_CHECKED,
    Cause,
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
# A rejection based on a node's record is not evidence against the node; otherwise a node once
# accused would stay accused. An unchecked completion is not evidence in the node's favour. Wrong
# sums are left out for every node.
_OF_RECORD = (STANDING_VERIFIER, FREQUENT_VERIFIER, FALSE_SUMS_VERIFIER, NOT_CHECKED)
_WORST_FIRST: Final = (Outcome.REJECT, Outcome.ABSTAIN, Outcome.ACCEPT)
RECURRING = "recurring_"
MAX_NAME_BYTES = 200
_CUT_NAME: Final = re.compile(rb".{%d}\.\.\.[0-9a-f]{32}" % (MAX_NAME_BYTES - 40), re.DOTALL)
MAX_KIND_CHARACTERS = 64
EXCERPT_CHARACTERS = 80
MAX_PHRASE_CHARACTERS = 400
MAX_PHRASES_OF_COMPLETION = 8
PIECE = 3
MAX_PIECES = 6
_PUNCTUATION = ".,;:!?\"'()[]{}<>*`"


@dataclass(frozen=True, slots=True)
class Phrase:
    """Digest of a chunk of a phrase that recurs in a node's work, plus the start of the phrase."""

    digest: bytes
    excerpt: bytes


class Entry(NamedTuple):
    """The part of a completion that is kept. A tuple takes a third of a dataclass's time to create.

    Args:
        node: Name of the sender, bounded in length; None if there is no sender.
        prompt: Digest of the prompt.
        key: Digest that identifies the completion, so that it counts once if recorded twice.
        outcome: Outcome of the verifiers that judge the work itself, not the node's record; None if
            no such verifier was asked.
        kinds: Kinds of the findings for which the completion was rejected.
        phrases: Recurring phrases found in the completion.
    """

    node: bytes | None
    prompt: bytes
    key: bytes
    outcome: Outcome | None
    kinds: tuple[str, ...] = ()
    phrases: tuple[Phrase, ...] = ()


@dataclass(frozen=True, slots=True)
class Intake:
    """The entries of one batch; ``round`` is the nodes' own number of the round, or None."""

    round: int | None
    entries: list[Entry] = field(default_factory=list)


def intake(
    batch: Sequence[Completion], verdicts: Sequence[Verdict], round: int | None = None
) -> Intake:
    """Extract the part of a batch that is kept. A rollout in several segments becomes one entry;
    see `_joined`.

    If ``round`` is None, it is the round claimed by the nodes that sent most of the batch. Raises
    ValueError if there is not one verdict per completion.
    """
    if len(batch) != len(verdicts):
        raise ValueError(f"verdicts: expected {len(batch)}, got {len(verdicts)}")
    again: dict[bytes, int] = {}
    verdicts = list(verdicts)  # keeps them alive, so that ids stay valid: many share one object
    outcomes: dict[int, Outcome | None] = {}
    entries = list[Entry]()
    segments: dict[Hashable, list[Entry]] = {}
    for completion, verdict in zip(batch, verdicts, strict=True):
        node, prompt, same, key = mark_of(completion)
        # Two equal completions in one batch count as two; the same batch sent again counts once.
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
    """Merge a rollout's entries into one: the worst outcome, and all findings and phrases.

    A sender may give one label to everything it sends and is then counted once. It gains nothing
    that way: one rejected segment costs it the whole rollout.
    """
    if len(segments) == 1:
        return segments[0]
    phrases = {phrase.digest: phrase for entry in segments for phrase in entry.phrases}
    return Entry(
        segments[0].node,
        min(entry.prompt for entry in segments),  # so that their order in the batch does not matter
        _digest(b"".join(sorted(entry.key for entry in segments))),
        _worst({entry.outcome for entry in segments}),
        tuple(sorted({kind for entry in segments for kind in entry.kinds})),
        tuple(phrases[digest] for digest in sorted(phrases)),
    )


def outcome_of_work(verdict: Verdict) -> Outcome | None:
    """Return the outcome that counts as evidence about the node; None if its work was not judged.

    A ledger's own rejections are not evidence; otherwise a node once accused would be accused for
    ever. If a node's standing ended a cascade, only the cheap verifiers before the standing judged
    the completion, and those after it were not asked; such a completion does not count.
    """
    # Causes that someone other than the author can bring about, to harm a node, are not evidence.
    if verdict.verifier in _OF_RECORD or verdict.cause in BARRING_CAUSES:
        return None
    # An honest model may have a phrase that no other model repeats. The phrase costs its node the
    # completions that contain it, but not its standing. A reader that finds the phrase foreign
    # gives a verdict of its own.
    if verdict.verifier == RECURRENCE_VERIFIER and verdict.rejected:
        return Outcome.ACCEPT
    if not verdict.members or not _has_exempt(verdict):
        return verdict.outcome
    last = verdict.members[-1]
    if last.verifier in _OF_RECORD and last.rejected:
        return None
    others = applicable_of(verdict.members)
    return _worst({outcome_of_work(member) for member in others})


def _worst(outcomes: Collection[Outcome | None]) -> Outcome | None:
    return next((outcome for outcome in _WORST_FIRST if outcome in outcomes), None)


def standing_bars(verdict: Verdict) -> bool:
    """Whether the verdict is about the sender and not the completion: the sender is excluded, or
    its standing is unknown."""
    if verdict.verifier == STANDING_VERIFIER:
        return verdict.rejected or verdict.cause is Cause.FAULT
    return any(map(standing_bars, verdict.members))


def name_bytes(name: str) -> bytes:
    """Return a node's name as it is stored; a long name is cut, and a digest keeps it unique.

    A name that looks as if it had been cut gets a digest of its own. Otherwise a node could adopt
    the cut form of another node's long name, share that node's record, and get it convicted.
    """
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_NAME_BYTES and not _CUT_NAME.fullmatch(data):
        return data
    return data[: MAX_NAME_BYTES - 40] + b"..." + _digest(data).hex().encode()


def stored_names(shown: str) -> tuple[bytes, bytes]:
    """Return the forms in which a node named by an operator may be stored, the more likely first:
    reports show names in their stored form, while logs show them in full."""
    return shown.encode("utf-8", "surrogatepass"), name_bytes(shown)


def printable(data: bytes) -> str:
    """Decode stored bytes for a terminal, with everything escaped that cannot be seen. Backslashes
    are doubled: otherwise a name could spell out the escapes of another node's."""
    return visible(data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))


def meant(given: str, names: Callable[[], Iterable[bytes]]) -> bytes | None:
    """Return the stored name that an operator's ``given`` means: the one that a report or a log
    shows like this or, if it shows none, the one that is stored like this. A name may spell out
    another's escapes, so the order matters. ``names`` yields all stored names."""
    for name in names():
        text = name.decode("utf-8", "backslashreplace")
        if given in (printable(name), shown_name(text, 12 * len(repr(text)))[1:-1]):
            return name
    stored = stored_names(given)
    return next((name for name in names() if name in stored), None)


def largest(sent: Mapping[Name, float]) -> list[Name]:
    """Return the names that sent the most: at least three names that make up at least half of
    everything, including all ties.

    Neither a new name for each completion nor one name that sends endlessly can form a majority of
    these names.
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
    """Return the median of the claimed rounds, with one vote for each of the `largest` senders, so
    that no minority can move the round.

    Nor can a minority set a round if most nodes claim none: otherwise one node that always claims 0
    could make each batch count as the same round, and evidence would never accumulate.
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
    """Yield chunks of `PIECE` words from a completion's recurring phrases, so that longer and
    shorter phrases match."""
    found: dict[bytes, Phrase] = {}
    findings = [f for f in verdict.findings if f.kind.startswith(RECURRING)]
    for finding in findings[:MAX_PHRASES_OF_COMPLETION]:
        start, end = finding.char_span or (0, 0)
        words = completion.text[start : min(end, start + MAX_PHRASE_CHARACTERS)].split()
        excerpt = " ".join(words)[:EXCERPT_CHARACTERS].encode("utf-8", "backslashreplace")
        for first in range(max(1, min(len(words) - PIECE + 1, MAX_PIECES))):
            piece = " ".join(words[first : first + PIECE]).casefold().strip(_PUNCTUATION)
            if piece:
                digest = _digest(piece.encode("utf-8", "surrogatepass"))
                found.setdefault(digest, Phrase(digest, excerpt))
    yield from found.values()


def _has_exempt(verdict: Verdict) -> bool:
    exempt = verdict.verifier in _OF_RECORD or verdict.verifier == RECURRENCE_VERIFIER
    return exempt or any(map(_has_exempt, verdict.members))


def mark_of(completion: Completion) -> tuple[bytes | None, bytes, bytes, bytes]:
    """Return a completion's node, with digests of its prompt, its content, and its first copy.

    The result is cached in the completion, because several memories ask about the same object: the
    ledger, and each rule that counts.
    """
    try:
        return completion.mark
    except AttributeError:
        node = None if completion.node is None else name_bytes(completion.node)
        prompt = _digest(prompt_key(completion.prompt).encode("utf-8", "surrogatepass"))
        same = _key(completion, prompt)
        mark = node, prompt, same, _digest(same + bytes(8))
        object.__setattr__(completion, "mark", mark)
        return mark


def _key(of: Completion, prompt: bytes) -> bytes:
    # A slot identifies a completion among those of its node. Groups are not signed: an attacker who
    # resends another node's work, each time under a different group, must not have it counted
    # again.
    group = of.group if of.slot is None else None
    parts = (of.round, of.node, group, of.slot, of.completion_ids)
    data = repr(parts).encode("utf-8", "backslashreplace")
    text = of.text.encode("utf-8", "surrogatepass")
    return _digest(_digest(data) + prompt + _digest(text))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
