"""Find the parts of a verifier that read texts one by one, and copy them for other processes."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Runnable
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.grader_pool import packed

logger = logging.getLogger("grpo_guard")

Rule: TypeAlias = RuleVerifier | RecurrenceVerifier
Reading: TypeAlias = tuple[Verdict, ...]
"""The results for one completion: one verdict from each of several verifiers, in order."""


def read_part(readers: Sequence[Runnable], part: Sequence[Completion]) -> list[Reading]:
    """Return one reading for each completion, in order."""
    columns = [supervised(each, part) for each in readers]
    # Nearly all rows are equal, and an object that occurs many times is sent only once.
    rows: dict[tuple[int, ...], Reading] = {}
    found = zip(*columns, strict=True)
    return [rows.setdefault(tuple(map(id, row)), row) for row in found]


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """The function run by a worker: copies of the verifiers, with this process's interpreter
    limits.

    Whether hostile text can be read may depend on these limits. Libraries change them, and verdicts
    must not depend on which process reaches them.
    """

    readers: tuple[Runnable, ...]
    recursion: int = field(default_factory=sys.getrecursionlimit)
    digits: int = field(default_factory=sys.get_int_max_str_digits)

    def __call__(self, part: Sequence[Completion]) -> list[Reading]:
        sys.setrecursionlimit(self.recursion)
        sys.set_int_max_str_digits(self.digits)
        return read_part(self.readers, part)


@dataclass(frozen=True, slots=True)
class Group:
    """Verifiers that are shown the same completions, so that each text is sent to them only once.

    Args:
        runnables: The objects that `supervised` is called with in this process.
        source: A pickled `ReadTexts` with copies of the verifiers.
        bare: Whether all verifiers are this library's own, which need only some completion fields.
        verifiers: The verifiers that are copied.
        settings: A pickle of the verifiers that could be modified between batches.
        digest: The digest of ``source``.
    """

    runnables: tuple[Runnable, ...]
    source: bytes
    bare: bool
    verifiers: tuple[CompletionVerifier, ...]
    settings: bytes
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", blake2b(self.source, digest_size=32).digest())

    def sent(self, completion: Completion) -> Completion:
        """The completion as it is sent to a worker."""
        return without_extras(completion) if self.bare else completion


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of one verifier that read texts in workers.

    If the plan is ``whole``, the first group sees whole batches, which are then worth sending
    before the verifier runs. The other groups see only the completions that a spot check draws or
    that `only` matches.
    """

    verifier: CompletionVerifier
    groups: tuple[Group, ...]
    whole: bool

    @classmethod
    def of(cls, verifier: CompletionVerifier) -> "Plan":
        """Find the parts of a verifier that workers can run. Parts that cannot be sent are logged
        and run here."""
        found: list[list[CompletionVerifier]] = [[]]
        _collect(verifier, found, found[0], set())
        first, *others = map(_group, found)
        groups = [group for group in (first, *others) if group is not None]
        return cls(verifier, tuple(groups), first is not None)

    def renewed(self) -> "Plan":
        """Return the plan with copies of the verifiers as they are now; this plan if none has
        changed."""
        try:
            same = all(_settings(group.verifiers) == group.settings for group in self.groups)
        except TypeError:  # a verifier can no longer be sent
            same = False
        return self if same else Plan.of(self.verifier)

    @property
    def places(self) -> dict[int, tuple[Group, int]]:
        """Map the ``id`` of each runnable to its group and its index in a `Reading`."""
        return {
            id(one): (group, i) for group in self.groups for i, one in enumerate(group.runnables)
        }


def _collect(
    one: CompletionVerifier,
    found: list[list[CompletionVerifier]],
    own: list[CompletionVerifier],
    seen: set[int],
) -> None:
    if id(one) in seen:
        return
    seen.add(id(one))
    if getattr(one, "is_elsewhere", False):  # Ray's workers read for it already
        return
    if reads_alone(one):
        own.append(one)
        return
    members = getattr(one, "members", ())
    if one.shows_some and members:
        own = []
        found.append(own)
    for member in members:
        _collect(member, found, own, seen)


def reads_alone(one: CompletionVerifier) -> bool:
    """Whether copies of a verifier, or of its text reader, can run in other processes."""
    return one.in_workers and _runnable(one).scope == "completion"


def _group(verifiers: Sequence[CompletionVerifier]) -> Group | None:
    """The group of the verifiers that can be sent; None if sending them is not worthwhile."""
    sendable = [one for one in verifiers if _sendable(one)]
    # Reading a text for `recurrence` takes little longer than sending it.
    if all(isinstance(one, RecurrenceVerifier) for one in sendable):
        return None
    return Group(
        tuple(map(_runnable, sendable)),
        _source(sendable),
        all(type(one).__module__.startswith("grpo_guard.") for one in sendable),
        tuple(sendable),
        _settings(sendable),
    )


def _source(verifiers: Sequence[CompletionVerifier]) -> bytes:
    copies = (one.reader().reading if isinstance(one, Rule) else one for one in verifiers)
    return packed(ReadTexts(tuple(copies)))


def _settings(verifiers: Sequence[CompletionVerifier]) -> bytes:
    # The text reader of `recurrence` has no settings, and two pickles of it differ in their bytes.
    return _source([one for one in verifiers if not isinstance(one, RecurrenceVerifier)])


def _sendable(one: CompletionVerifier) -> bool:
    try:
        _source([one])
    except TypeError as error:
        logger.warning(
            "workers: verifier %s cannot be sent to another process and runs in this one (%s)",
            one.name, error,
        )  # fmt: skip
        return False
    return True


def _runnable(one: CompletionVerifier) -> Runnable:
    return one.reading if isinstance(one, Rule) else one


def without_extras(completion: Completion) -> Completion:
    """A completion as this library's rules see it: without anything a trainer might have added,
    such as images, GPU tensors, or objects that only the trainer's own process can hold, and
    without its place in its group, which no rule reads and which is often known only later."""
    spans = completion.verified_spans is not None
    return completion.with_labels(
        prompt=_bare(completion.prompt),
        prompt_ids=None,
        completion_ids=completion.completion_ids if spans else None,
        sampler_logprobs=None,
        group=None, slot=None, rollout=None,
        metadata={},
    )  # fmt: skip


def _bare(value: Any) -> Any:
    """Copy a prompt, with None for everything but text, numbers and their containers. Recursion is
    safe, because `Completion` limits how deeply prompts are nested."""
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {_key(key): _bare(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    return list(map(_bare, value)) if isinstance(value, list) else None


def _key(key: Any) -> Any:
    return key if isinstance(key, str | int | float) else repr(key)
