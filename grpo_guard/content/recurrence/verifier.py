"""`RecurrenceVerifier`: finds phrases that only one node repeats from prompt to prompt."""

from __future__ import annotations

import copy
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args

from grpo_guard.content.json_text import as_read
from grpo_guard.content.recurrence.features import Reader, excused_by
from grpo_guard.content.recurrence.phrases import findings_of
from grpo_guard.content.recurrence.reading import Shown, read_each
from grpo_guard.content.recurrence.seats import Conviction
from grpo_guard.content.recurrence.sentences import sentences_of
from grpo_guard.content.recurrence.state import dump, load
from grpo_guard.content.recurrence.swarm import Swarm, lockstep
from grpo_guard.content.recurrence.words import declared_words, ordinary_words, words_of
from grpo_guard.content.rules import decided, severities_of
from grpo_guard.content.severity import CONFIRM_OR_REJECT, CONFIRM_OR_REPORT, REJECT, Kind, Severity
from grpo_guard.core.arguments import require_choice, require_count, require_level, require_share
from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Runnable, Scope
from grpo_guard.core.supervise import from_elsewhere
from grpo_guard.core.turns import OwnText, own_text
from grpo_guard.core.verdict import Cause, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.store import NodeStore

SwarmKind: TypeAlias = Literal["heterogeneous", "homogeneous"]

MAX_CHARACTERS = 1_000_000
_LEAST_SHARE = 0.1


class RecurrenceVerifier(Memory, CompletionVerifier):
    """Rejects completions with a phrase that only their node repeats from prompt to prompt.

    No phrases are known in advance. For each node, the verifier counts how many different prompts
    each word (and phrase, sentence opening, import, statement shape) occurs in, and compares the
    counts with the other nodes' using an exact test, corrected for all tests made. Once a node is
    convicted of a feature, each of its completions that contains the feature is rejected. Batches
    are counted before they are judged. Anything in the prompt is excused, numbers count only in
    false sums, and a completion sent again is counted only once.

    **What counts as a habit.** If models differ, an honest one has phrases of its own, and counts
    alone cannot tell "Let's think step by step" from a slogan. So ``"heterogeneous"``, the default,
    convicts for words outside lists of how people reason, calculate, format and chat (see
    `words`), for imports of unknown packages, for a false sum such as "2 + 2: 5" in a quarter
    of a node's prompts, and for a whole sentence in two thirds of them, unless honest models write
    similar sentences (see `sentences`). Rarer slogans of listed words pass; an honest model with an
    odd habit is convicted, unless `learn_habits` has seen its work. ``"homogeneous"``, for nodes
    with the same weights, also convicts for phrases of ordinary words and code shapes.

    A completion without ``node``, or with an empty prompt, is NOT_APPLICABLE. As long as no other
    node is known, there is nothing to compare with, and the verdict is UNINFORMATIVE. Text beyond
    ``max_characters`` is rejected, because its author controls its length.

    Cannot detect: a phrase before it has recurred; a phrase shared by half or more of the nodes;
    wording that never repeats a word; numbers outside false sums, and ASCII symbols; in
    ``"heterogeneous"``, text that is mostly outside the lists, such as German (the lists cover
    English and Chinese).

    The object keeps bounded counts between batches, can be shared between threads and pickled, and
    can save its counts and learnt habits with `state_dict`. `load_state_dict` replaces the counts
    and adds the habits to those already known. A state does not record which completions were seen.
    Anyone who can read a state knows which nodes are counted together, and anyone who can write one
    decides who is convicted.

    Args:
        alpha: Probability that an honest node is ever convicted of anything, in (0, 0.5).
        swarm: Whether the nodes' models differ (``"heterogeneous"``) or have the same weights
            (``"homogeneous"``); see above.
        min_share: Share of a node's prompts that must show a habit for it to be tested.
        ordinary: Words of your task, such as those of a template that honest answers share. Neither
            they nor sentences and phrases of them convict anybody, even in a store that does.
        max_nodes: Maximum number of nodes counted individually, >= 2. Any further nodes are
            counted in groups, which is logged once. Memory grows with this number.
        max_characters: Maximum number of characters in a completion; longer ones are rejected.
        severity: Severity by kind of finding: ``"reject"``, ``"confirm"`` or ``"report"``.
        confirm: Whether phrases are left to a `ReaderVerifier`, which tells habits from slogans.
            Words of every language are then examined.
        store: Where counts are kept for several processes and across restarts; None to keep them in
            this object. With a store, every batch writes all counts: 0.2 MB for four nodes of a
            heterogeneous swarm, a few MB if all phrases count.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "recurrence"
    # What one node repeats across prompts; counting happens before the finding is made.
    KINDS: ClassVar[Mapping[str, Kind]] = {
        "recurring_identifier": REJECT,  # importing an unknown package is not a habit of style
        "recurring_sum": REJECT,  # a reader cannot decide: no number looks foreign
        "recurring_opening": CONFIRM_OR_REJECT,
        "recurring_phrase": CONFIRM_OR_REJECT,
        "recurring_shape": REJECT,
        # In a language not covered by the lists, where every word is unusual, only a reader can
        # tell a habit from a slogan.
        "recurring_unlisted": CONFIRM_OR_REPORT,
    }
    scope: Scope = "history"
    shares_calls = True

    def __init__(
        self,
        *,
        alpha: float = 1e-3,
        swarm: SwarmKind = "heterogeneous",
        min_share: float = _LEAST_SHARE,
        ordinary: Iterable[str] = (),
        max_nodes: int = 256,
        max_characters: int = MAX_CHARACTERS,
        severity: Mapping[str, str] | None = None,
        confirm: bool = False,
        store: NodeStore | None = None,
    ) -> None:
        require_level("RecurrenceVerifier.alpha", alpha, below=0.5)
        require_choice("RecurrenceVerifier.swarm", swarm, get_args(SwarmKind))
        require_share("RecurrenceVerifier.min_share", min_share)
        require_count("RecurrenceVerifier.max_nodes", max_nodes, least=2)
        require_count("RecurrenceVerifier.max_characters", max_characters)
        declared = declared_words(ordinary)
        self.swarm = swarm
        # In a homogeneous swarm, a text has so many features that sending them takes as long as
        # reading the text.
        self.in_workers = swarm == "heterogeneous"
        self.max_characters = max_characters
        # There is no "count" severity: recurrences are found by counting in the first place.
        known = (Severity.REJECT, Severity.CONFIRM, Severity.REPORT)
        self.severities = severities_of(self.KINDS, severity, known, confirm=confirm)
        self.confirm = confirm
        self._reader = Reader(
            ordinary_words() | declared,
            swarm == "homogeneous",
            secrets.token_bytes(16),
            any_language=confirm,
            declared=declared,
        )
        self._swarm = Swarm(alpha, min_share, max_nodes, self._reader)
        self._habits = frozenset[str]()
        self.reading: Runnable = _Reading(self)
        """The runnable that reads completions but does no counting. If ``in_workers``, it can be
        replaced by a runnable that queries a copy in another process."""
        # The two kinds of swarm cannot share counts. In 0.3 both used this name.
        own = self.name if swarm == "heterogeneous" else f"{self.name}_{swarm}"
        super().__init__(store, own, former=lambda key: key.replace(f"_{swarm}", ""))

    def reader(self) -> Self:
        """Return a copy for another process; the copy reads texts but does no counting."""
        copied, swarm = copy.copy(self), self._swarm
        copied._reader = replace(self._reader, secret=b"")
        copied._swarm = Swarm(swarm.alpha, swarm.min_share, swarm.seats.max_nodes, copied._reader)
        copied._path, copied.reading = None, _Reading(copied)
        return copied

    @property
    def steps_aside(self) -> bool:
        return True

    @property
    def idle_without(self) -> Mapping[str, str]:
        return {"node": "looks at nothing"}

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return self.verify_each([batch])[0]

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        """Verify each batch in turn, as `verify` does, but lock the file only once."""
        # Text given to the author is not the author's own, so only the author's turns are read.
        own = [[own_text(completion) for completion in batch] for batch in batches]
        read = [self._read(authored, batch) for authored, batch in zip(own, batches, strict=True)]

        def take_in() -> None:
            for each in read:
                self._take_in(each)

        self.change(take_in)
        return [
            [
                one.whole(v) if one else v
                for one, v in zip(authored, self._verdicts(each), strict=True)
            ]
            for authored, each in zip(own, read, strict=True)
        ]

    def _read(self, own: Sequence[OwnText | None], given: Sequence[Completion]) -> _Read:
        """Read a batch. This is the slow part and takes no lock, because long texts must not lock
        other processes out of the file."""
        # JSON escapes are decoded: a literal \\n stuck to a word would pass for an unusual word.
        batch = [as_read(s.completion if s else c) for s, c in zip(own, given, strict=True)]
        prompts = _Prompts()
        aside = [self._set_aside(completion) for completion in batch]
        queues = defaultdict[str, list[int]](list)
        for i, (completion, verdict) in enumerate(zip(batch, aside, strict=True)):
            if verdict is None and completion.node is not None:
                queues[completion.node].append(i)
        places = [i for queue in queues.values() for i in queue]
        found = self._features([given[i] for i in places], [batch[i] for i in places], prompts)
        return _Read(batch, prompts, aside, queues, dict(zip(places, found, strict=True)))

    def _features(
        self, given: Sequence[Completion], own: Sequence[Completion], prompts: _Prompts
    ) -> list[set[str]]:
        """Return each completion's features. Workers identify completions by the objects
        ``given``."""
        reader, mark = self._reader, self._reader.mark
        found: Sequence[Verdict | None] = [None] * len(given)
        if self.in_workers:
            found = from_elsewhere(self.reading, given) or self.reading.verify(given)
        return [
            set(one.features)
            if isinstance(one, Shown) and one.features is not None and one.by == mark
            else reader.read(completion.text, prompts.words(completion))
            for completion, one in zip(own, found, strict=True)
        ]

    def _take_in(self, read: _Read) -> None:
        seats = self._swarm.seats
        # Before these completions are counted: a whole batch may come under a name of its own.
        fresh = {node: seats.fresh(node) for node in read.queues}
        for turn in lockstep(read.queues):
            for i in turn:
                self._count(read.batch[i], read.prompts, read.features[i])
            self._swarm.look()
        read.alone = len(seats.records) < 2
        read.convicted = {
            node: dict(seats.convicted(node, fresh=is_fresh)) for node, is_fresh in fresh.items()
        }

    def _verdicts(self, read: _Read) -> list[Verdict]:
        return [
            decided(
                self._judged(completion, read.prompts, read.convicted, read.alone), self.severities
            )
            if verdict is None
            else verdict
            for completion, verdict in zip(read.batch, read.aside, strict=True)
        ]

    def learn_habits(self, texts: Iterable[str]) -> None:
        """Treat words and sentences found in two or more of these texts as ordinary from now on.

        Call it before training, with samples you generated yourself from the nodes' models; text
        from a peer would teach the peer's poison. Existing convictions are not revoked.
        """
        shown = ((words := words_of(text), sentences_of(words, frozenset())) for text in texts)
        counts = Counter(one for words, sentences in shown for one in {*words, *sentences})
        habits = frozenset(one for one, count in counts.items() if count > 1)
        with self._lock:
            self._learn(habits)

    def convictions(self) -> dict[str, list[Conviction]]:
        """Return the convictions of each node, strongest first, leaving out nodes without any.

        Joint convictions of several nodes (all newcomers, or those beyond ``max_nodes``) are left
        out as well; they are named in the verdicts on these nodes' completions.
        """
        with self._lock:
            return {
                node: sorted(record.convicted.values(), key=lambda c: c.p_value)
                for node, record in self._swarm.seats.records.items()
                if record.convicted
            }

    def shared_phrases(self) -> dict[str, dict[str, float]]:
        """Map convicted phrases shown by several nodes to each node's share of prompts.

        Such a phrase hints at Sybils, or at spreading poison; no other node is convicted of it.
        """
        with self._lock:
            return self._swarm.shared()

    def _state(self) -> dict[str, Any]:
        with self._lock:
            return {"swarm": self.swarm, "habits": sorted(self._habits), **dump(self._swarm)}

    def _take_up(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("swarm") != self.swarm:
            got = state.get("swarm") if isinstance(state, dict) else state
            raise ValueError(
                f"RecurrenceVerifier.load_state_dict: expected the state of a {self.swarm} swarm, "
                f"got {got!r:.80}"
            )
        with self._lock:
            habits = load(self._swarm, state)
            self._learn(habits)

    def _learn(self, habits: frozenset[str]) -> None:
        self._habits |= habits
        self._reader = replace(self._reader, ordinary=self._reader.ordinary | habits)
        self._swarm.reader = self._reader

    def _set_aside(self, completion: Completion) -> Verdict | None:
        length = len(completion.text)
        if length > self.max_characters:
            message = f"{length} characters, but at most {self.max_characters} are read"
            return reject(self.name, Cause.OVERLONG, message)
        if completion.node is None:
            return abstain(self.name, Cause.NOT_APPLICABLE, "no node to compare with the others")
        if not completion.prompt:
            return abstain(self.name, Cause.NOT_APPLICABLE, "no prompt to tell from the others")
        return None

    def _count(self, completion: Completion, prompts: _Prompts, features: set[str]) -> None:
        node = completion.node
        assert node is not None
        key = prompts.key(completion)
        digest = _digest(key, f"{node}\0{completion.text}")
        if self._swarm.seats.take(node).sketch.is_new(digest):
            self._swarm.add(node, key, features, completion.text, digest)

    def _judged(
        self,
        completion: Completion,
        prompts: _Prompts,
        convicted: dict[str, dict[Any, Conviction]],
        alone: bool,
    ) -> Verdict:
        node = completion.node or ""
        known = convicted.get(node)
        if known:
            prompt_words = prompts.words(completion)
            features = self._reader.read(completion.text, prompt_words, all_of_it=True)
            found = sorted(
                (known[f] for f in features & known.keys()), key=lambda c: (c.p_value, c.phrase)
            )
            if found:
                unlisted = self.confirm and self._reader.is_unlisted(completion.text, prompt_words)
                findings = findings_of(completion.text, node, found, unlisted=unlisted)
                return reject(self.name, p_value=found[0].p_value, findings=findings)
        if alone:
            reason = "no other node is known yet; mix the answers of several nodes in a batch"
            return abstain(self.name, Cause.UNINFORMATIVE, reason)
        return accept(self.name)


class _Prompts:
    """Words and keys of a batch's prompts, each computed once."""

    def __init__(self) -> None:
        self._words, self._keys = cache(excused_by), cache(_key)

    def words(self, completion: Completion) -> frozenset[str]:
        """Return the prompt's words and false sums, which are excused."""
        return self._words(completion.trusted_prompt_text)

    def key(self, completion: Completion) -> bytes:
        """Return a key that also depends on the round: a prompt in two rounds has two keys."""
        return self._keys(completion.prompt_text, completion.round)


class _Reading(Runnable):
    """The part of the verifier that reads texts, without the counting."""

    scope: Scope = "completion"
    timeout = None

    def __init__(self, verifier: RecurrenceVerifier) -> None:
        self.verifier = verifier

    @property
    def name(self) -> str:
        return self.verifier.name

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        own = self.verifier
        return list(read_each(own._reader, batch, own.max_characters, own.name))


@dataclass(slots=True)
class _Read:
    """A batch after reading, and the state of its nodes after counting."""

    batch: Sequence[Completion]
    prompts: _Prompts
    aside: list[Verdict | None]
    queues: dict[str, list[int]]
    features: dict[int, set[str]]
    convicted: dict[str, dict[Any, Conviction]] = field(default_factory=dict)
    alone: bool = True


def _key(prompt: str, at: int | None) -> bytes:
    return _digest(str(at).encode(), prompt)


def _digest(salt: bytes, text: str) -> bytes:
    # "surrogatepass", because lone surrogates cannot be encoded otherwise and must not raise.
    return blake2b(text.encode("utf-8", "surrogatepass"), key=salt, digest_size=12).digest()
