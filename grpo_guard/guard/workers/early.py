"""`EarlyReadings`: reads texts as they arrive, ahead of the rest of their batch."""

import logging
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Runnable
from grpo_guard.core.supervise import running
from grpo_guard.core.verdict import Cause, Verdict
from grpo_guard.guard.workers.plan import Group, Reading, ReadTexts, read_part
from grpo_guard.guard.workers.ticket import Lost, Part, Ticket, balanced, weight

if TYPE_CHECKING:
    from grpo_guard.guard.workers.pool import Pool

logger = logging.getLogger("grpo_guard")

MOST_WAITING: Final = 1_024
"""Maximum number of texts waiting to be read. Any further texts are read with their batch."""
MOST_CHARACTERS: Final = 8_000_000
"""Maximum number of characters in the waiting texts and their prompts."""
LONGEST: Final = 500_000
"""Maximum length of a text with its prompt, in characters. A longer text is read with its batch,
because the caller, possibly an event loop, would have to wait for its digest."""
MOST_KEPT: Final = 8_192
"""Maximum number of readings waiting for their batch; beyond that, the oldest is dropped."""
MOST_CHARACTERS_KEPT: Final = 32_000_000
"""Maximum number of characters in the texts and prompts of these readings; beyond that, the oldest
reading is dropped. A reading takes up to two bytes per character."""
MOST_FAILED: Final = 3
"""Number of failed texts after which no more are read until the next batch."""
MOST_PARTS: Final = 100_000
"""Maximum number of strings, numbers and containers in a completion's prompt and metadata."""
PATIENCE: Final = 1.0
"""Maximum time that a batch waits for texts being read when it arrives, in seconds."""
_A_WORKER: Final = 4
# Abstention causes that are a verifier's judgement of the text. All others are failures.
_JUDGED: Final = frozenset({Cause.UNSUPPORTED, Cause.UNINFORMATIVE, Cause.NOT_APPLICABLE})


@dataclass(frozen=True, slots=True)
class _Text:
    """A completion as the readers of a group see it."""

    group: Group
    completion: Completion
    characters: int


class EarlyReadings:
    """Reads completions in the background as they arrive, and keeps the readings.

    A batch uses the readings of its completions instead of reading them again. A reading is
    identified by a digest of the readers and everything shown to them, so no claim by a sender can
    assign it to another completion. Failures are not kept: the batch reads those texts again, under
    its own supervision.

    A background thread reads the texts, alone or with worker processes, and ends when nothing is
    waiting. It starts no text while a batch is being read, so that early texts never delay a batch.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: OrderedDict[bytes, _Text] = OrderedDict()
        self._reading: dict[bytes, _Text] = {}
        self._kept: OrderedDict[bytes, tuple[Reading, int]] = OrderedDict()  # reading, characters
        self._characters = self._characters_kept = 0
        self._is_running = False
        self._batches = 0
        self._failed = 0
        self._pool: Pool | None = None
        self._ticket: Ticket | None = None
        self._readers: tuple[Group, tuple[Runnable, ...]] | None = None

    def add(self, group: Group, batch: Sequence[Completion], pool: "Pool | None") -> None:
        """Queue completions for a group to read, as space allows, in a pool or, if that is None, in
        this object's thread. Returns immediately."""
        for completion in batch:
            text = _shown(group, completion)
            key = None if text is None else _digest(text)
            if text is not None and key is not None:
                with self._changed:
                    self._pool = pool
                    self._add(key, text)

    def _add(self, key: bytes, text: _Text) -> None:
        known = key in self._waiting or key in self._reading or key in self._kept
        full = (
            len(self._waiting) >= MOST_WAITING
            or self._characters + text.characters > MOST_CHARACTERS
            or self._failed >= MOST_FAILED
        )
        if known or full:
            return
        self._waiting[key] = text
        self._characters += text.characters
        if not self._is_running:
            self._is_running = True
            threading.Thread(target=self._work, daemon=True, name="grpo-guard-early").start()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context in which a batch is read; no early text is started meanwhile."""
        with self._changed:
            self._batches += 1
        try:
            yield
        finally:
            with self._changed:
                self._batches -= 1
                self._failed = max(0, self._failed - 1)
                self._changed.notify_all()

    def take(self, group: Group, batch: Sequence[Completion]) -> dict[int, Reading]:
        """Return the available readings for a batch's completions, by index. Waits at most
        `PATIENCE` seconds for readings in progress; other texts are no longer read early."""
        texts = [_shown(group, completion) for completion in batch]
        keys = [None if text is None else _digest(text) for text in texts]
        mine = {key for key in keys if key is not None}
        end = time.monotonic() + PATIENCE
        with self._changed:
            for key in mine:
                self._drop(key)
            while mine & self._reading.keys() and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if mine & self._reading.keys() and self._ticket is not None:
                self._ticket.abandon()
            found = {key: self._forget(key) for key in mine & self._kept.keys()}
        return {i: found[key] for i, key in enumerate(keys) if key is not None and key in found}

    def clear(self) -> None:
        """Forget all texts, whether they have been read or not."""
        with self._changed:
            self._waiting.clear()
            self._kept.clear()
            self._characters = self._characters_kept = 0
            if self._ticket is not None:
                self._ticket.abandon()

    def _forget(self, key: bytes) -> Reading:
        reading, characters = self._kept.pop(key)
        self._characters_kept -= characters
        return reading

    def _drop(self, key: bytes) -> None:
        text = self._waiting.pop(key, None)
        self._characters -= 0 if text is None else text.characters

    def _work(self) -> None:
        while texts := self._next():
            found: Sequence[Reading | Lost | None] = [None] * len(texts)
            try:
                found = self._read(list(texts.values()))
            except Exception as error:
                logger.debug("texts are read with their batch, not early: %r", error)
            finally:
                with self._changed:
                    self._put(list(texts), found)

    def _next(self) -> Mapping[bytes, _Text]:
        """Texts to read next, all for one group; empty, to end the thread, if there are none."""
        with self._changed:
            while self._batches and self._waiting:
                self._changed.wait()
            if not self._waiting:
                self._is_running = False
                return {}
            pool = self._pool
            most = 1 if pool is None or pool.closed else _A_WORKER * pool.workers
            first = next(iter(self._waiting.values())).group
            same = [key for key, text in self._waiting.items() if text.group is first][:most]
            self._reading = {key: self._waiting[key] for key in same}
            for key in same:
                self._drop(key)
            return dict(self._reading)

    def _read(self, texts: Sequence[_Text]) -> Sequence[Reading | Lost | None]:
        group, batch = texts[0].group, [text.completion for text in texts]
        pool = self._pool
        if pool is not None and not pool.closed:
            ticket = _OneTry(batch, [one.node for one in batch], (group.source,))
            with self._changed:
                self._ticket = ticket
            pool.submit(ticket, balanced([weight(one) for one in batch], len(batch)))
            return [ticket.answer(i) for i in range(len(batch))]
        if self._readers is None or self._readers[0] is not group:
            # Copies, as in a worker: a batch could call the original verifiers in the meantime.
            source: ReadTexts = pickle.loads(group.source)
            self._readers = group, source.readers
        with running(None):
            return read_part(self._readers[1], batch)

    def _put(self, keys: Sequence[bytes], found: Sequence[Reading | Lost | None]) -> None:
        read, self._reading, self._ticket = self._reading, {}, None
        for key, reading in zip(keys, found, strict=True):
            if reading is None:  # given up for a batch, which reads it itself
                continue
            if isinstance(reading, Lost) or any(map(is_failure, reading)):
                self._failed = min(MOST_FAILED, self._failed + 1)
            else:
                self._kept[key] = reading, read[key].characters
                self._characters_kept += read[key].characters
        while len(self._kept) > MOST_KEPT or self._characters_kept > MOST_CHARACTERS_KEPT:
            self._forget(next(iter(self._kept)))
        if self._failed >= MOST_FAILED:
            self._waiting.clear()
            self._characters = 0
        self._changed.notify_all()


class _OneTry(Ticket):
    """A ticket whose lost parts are not retried, because their batch will read them. No batch waits
    for such a ticket."""

    gives_way = True

    def smaller(self, part: Part) -> list[Part]:
        return []


def is_failure(verdict: Verdict) -> bool:
    """Whether a verdict contains an abstention that is not a judgement of the text, so that a
    second try might turn out differently."""
    own = verdict.abstained and verdict.cause not in _JUDGED
    return own or any(map(is_failure, verdict.members))


def _shown(group: Group, completion: Completion) -> _Text | None:
    """Copy what readers see of a completion; None if it is too long or holds anything but text,
    numbers and their containers, because other objects could change before the batch arrives."""
    characters = len(completion.text) + len(completion.prompt_text)
    if characters > LONGEST:
        return None
    sent = group.sent(completion)
    room = [MOST_PARTS]
    try:
        copied = sent.with_labels(
            prompt=_copy(sent.prompt, room), metadata=_copy(sent.metadata, room)
        )
    except (TypeError, RecursionError):
        return None
    return _Text(group, copied, characters)


def _copy(value: Any, room: list[int]) -> Any:
    room[0] -= 1
    if room[0] < 0:
        raise TypeError("too many parts")
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if kind is dict:
        return {_copy(key, room): _copy(part, room) for key, part in value.items()}
    if kind in (tuple, list):
        return kind(_copy(part, room) for part in value)
    raise TypeError(kind.__name__)


def _digest(text: _Text) -> bytes | None:
    """Digest of the readers and every field they see; None if a field cannot be written. The digest
    is over ``repr``, which tells 1 from 1.0, True and "1"."""
    try:
        fields = repr(text.completion.__reduce__()[1])
    except (ValueError, RecursionError):  # an integer that is too long to print
        return None
    return blake2b(
        text.group.digest + fields.encode("utf-8", "surrogatepass"), digest_size=32
    ).digest()
