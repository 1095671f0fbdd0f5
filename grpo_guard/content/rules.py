"""`RuleVerifier`: rules find, and a table says what becomes of it."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

from grpo_guard.completion import Completion
from grpo_guard.content.json_text import as_read
from grpo_guard.content.severity import SEVERITY, WITHOUT_READER, Severity
from grpo_guard.nodes.counts import NOTHING, Counts
from grpo_guard.nodes.fortunes import Fortunes
from grpo_guard.nodes.store import NodeStore, book_name
from grpo_guard.registry import UnknownNameError, choose
from grpo_guard.supervise import supervised_each
from grpo_guard.turns import Said, as_said, turns
from grpo_guard.verdict import Cause, Outcome, Verdict
from grpo_guard.verifier import CompletionVerifier

if TYPE_CHECKING:
    from grpo_guard.supervise import Runnable


class RuleOptions(TypedDict, total=False):
    """What every rule takes beside its own options."""

    severity: Mapping[str, str] | None
    confirm: bool
    store: NodeStore | None
    count_alpha: float
    count_odds: float


class RuleVerifier(CompletionVerifier):
    """A verifier whose findings decide by their severity.

    Subclasses implement `look`, and say in ``KINDS`` what it can find. A finding whose severity is
    ``reject`` rejects. One whose severity is ``count`` rejects once its node has such findings more
    often than the others who answered the same prompts, beyond chance (`Counts`); where completions
    have no node, or fewer than three nodes answered, it is reported. ``report`` decides nothing.

    Args:
        severity: Of kinds of findings, in place of those of `SEVERITY`: ``"reject"``,
            ``"confirm"``, ``"count"`` or ``"report"``.
        confirm: Whether findings of severity ``confirm`` are left to a `ReaderVerifier`.
            False: they do what `WITHOUT_READER` says.
        store: Where counts lie, by the verifier's name. None = in this object.
        count_alpha: Chance, in (0, 1), that any honest node ever loses anything to this rule's
            counting. Half of 1e-3, since two of our rules count by default.
        count_odds: How many times an honest node's odds of a finding that counts may be those of
            its honest peers on the same prompt, in [1, 100].

    Raises:
        ValueError: an argument is not one of these.

    Attributes:
        KINDS: What `look` can find.
        counts: What is counted of nodes; None where nothing counts.
        looks_alone: A finding depends on its own completion and no other. Such a rule is shown a
            bounded amount of text a call, each with a time-out of its own; see `supervised`.
        by_turn: Kinds of findings that depend on where a turn begins and ends. What a tool or user
            is known to have said is shown to no rule.
        look_timeout: Seconds that one call of `look` may take.
    """

    KINDS: ClassVar[frozenset[str]] = frozenset()
    # Counting needs the whole batch. Only `look` is shown portions and timed: under one time-out
    # for all of them, one author's long texts would have everybody's batch abstained on.
    timeout = None
    look_timeout: float | None = 600.0
    looks_alone: bool = False
    by_turn: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        *,
        severity: Mapping[str, str] | None = None,
        confirm: bool = False,
        store: NodeStore | None = None,
        count_alpha: float = 5e-4,
        count_odds: float = 3.0,
    ) -> None:
        if not _is_number(count_alpha) or not 0 < count_alpha < 1:
            raise ValueError(f"count_alpha: expected a number in (0, 1), got {count_alpha!r:.80}")
        if not _is_number(count_odds) or not 1 <= count_odds <= 100:
            raise ValueError(f"count_odds: expected a number in [1, 100], got {count_odds!r:.80}")
        if store is not None and not isinstance(store, NodeStore):
            raise ValueError(f"store: expected a NodeStore or None, got {store!r:.80}")
        self.confirm = confirm
        self.severities = severities_of(self.KINDS, severity, confirm=confirm)
        self.counting = frozenset(k for k, s in self.severities.items() if s is Severity.COUNT)
        self.store = store
        self.counts: Counts | None = None
        if self.counting:
            fortunes = Fortunes(store=store, name=book_name(self.name))
            self.counts = Counts(fortunes, count_alpha, count_odds)
        self._look: Runnable = _Look(self)

    @property
    def compares(self) -> str | None:
        """See `grpo_guard.distributed.worker.compares`."""
        if not self.looks_alone:
            return f"{self.name} compares the completions of a batch"
        return f"{self.name} counts findings of nodes" if self.counting else None

    @abstractmethod
    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, as if no severity were known, with all that is found.

        An abstention, and what rejects for something else than findings of ``KINDS`` (a text that
        is too long or empty), stands as it is. Of all others the findings decide; the cause and
        p-value of a rejection that stays one are kept.
        """

    @property
    def idle_without(self) -> Mapping[str, str]:
        return {"node": "counts no findings"} if self.counting else {}

    @property
    def joins(self) -> bool:
        return self.looks_alone

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, decided by the severity of what was found."""
        return self.verify_each([batch])[0]

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        """As `verify` says of each; what counts is counted by batch."""
        looked = supervised_each(self._look, batches)
        return [self._counted(b, said) for b, said in zip(batches, looked, strict=True)]

    def _counted(self, batch: Sequence[Completion], looked: Sequence[Verdict]) -> list[Verdict]:
        verdicts = [decided(v, self.severities) for v in looked]
        if self.counts is None or all(completion.node is None for completion in batch):
            return verdicts
        counted = [
            next((f for f in verdict.findings if f.kind in self.counting), None)
            if verdict.findings and not verdict.abstained
            else None
            for verdict in verdicts
        ]
        return self.counts.judged(batch, verdicts, counted)

    @property
    def reading(self) -> Runnable:
        """What calls `look`. Where ``looks_alone``, another may be put in its place that asks a
        copy of this rule elsewhere."""
        return self._look

    @reading.setter
    def reading(self, reading: Runnable) -> None:
        self._look = reading

    def reader(self) -> Self:
        """A copy that can be sent to another process, to read and to count nothing."""
        copied = copy.copy(self)
        copied.store, copied.counts = None, None
        copied._look = _Look(copied)
        return copied

    def state_dict(self) -> dict[str, Any]:
        """What is counted, as plain JSON values."""
        return {"counts": None if self.counts is None else self.counts.fortunes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: it is not of that form, or of a rule that counts where this one does not.
        """
        counts = state.get("counts", self) if isinstance(state, dict) else self
        if counts is self or (counts is not None and self.counts is None):
            got = type(state).__name__ if counts is self else "counts"
            raise ValueError(f"{self.name}: expected what state_dict() gave, got {got}")
        if self.counts is not None:  # of a rule that did not count: nothing is counted now
            self.counts.fortunes.load_state_dict(NOTHING if counts is None else counts)

    def kept(self, kinds: Sequence[str], limit: int) -> list[int]:
        """Places of at most ``limit`` findings, in their order; what weighs least is left out.

        Or many harmless findings, which are easily written, would push out the one that rejects.
        """
        ranks = [_RANKS[self.severities[kind]] for kind in kinds]
        return sorted(sorted(range(len(kinds)), key=ranks.__getitem__)[:limit])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Look:
    """A rule without its counting, as `supervised` runs it."""

    def __init__(self, rule: RuleVerifier) -> None:
        self.rule = rule

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def timeout(self) -> float | None:
        return self.rule.look_timeout

    @property
    def judges_alone(self) -> bool:
        return self.rule.looks_alone

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        # Before any rule: what is written as JSON is read as what it says.
        if all(completion.told is None for completion in batch):
            return self.rule.look([as_read(completion) for completion in batch])
        kinds = self.rule.by_turn
        parts = [self._parts(completion) for completion in batch]
        shown = [
            one
            for completion, own in zip(batch, parts, strict=True)
            for one in ([part.completion for part in own] or [completion])
        ]
        found = self.rule.look([as_read(completion) for completion in shown])
        if len(found) != len(shown):
            return found  # `supervised` says what is wrong
        left = iter(found)
        verdicts = []
        for own in parts:
            whole, *apart = [part.whole(next(left)) for part in own] or [next(left)]
            verdicts.append(_with_apart(whole, apart, kinds) if apart else whole)
        return verdicts

    def _parts(self, completion: Completion) -> list[Said]:
        """All that its author said, then turn by turn; nothing where that is the completion."""
        own = as_said(completion)
        if own is None:
            return []
        return [own, *(turns(completion) if self.rule.by_turn else ())]


def _with_apart(whole: Verdict, apart: Sequence[Verdict], kinds: frozenset[str]) -> Verdict:
    """The verdict on an author's words, with some kinds of findings from its turns instead."""
    rest = tuple(finding for finding in whole.findings if finding.kind not in kinds)
    if whole.abstained or (whole.rejected and not whole.findings):
        return whole
    found = tuple(f for verdict in apart for f in verdict.findings if f.kind in kinds)
    if whole.rejected and rest:
        return replace(whole, findings=(*rest, *found))
    said = next((v for v in apart if v.rejected and kinds & {f.kind for f in v.findings}), None)
    if said is not None:
        return replace(said, findings=(*found, *rest))
    return replace(whole, outcome=Outcome.ACCEPT, cause=Cause.JUDGED, findings=(*rest, *found))


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


def decided(verdict: Verdict, severities: Mapping[str, Severity]) -> Verdict:
    """The verdict as the severity of its findings has it.

    An abstention stays one, and what was decided for something that no table knows stays so.

    Args:
        verdict: What a rule found.
        severities: Of all kinds that it can find.
    """
    if not verdict.findings or verdict.abstained:
        return verdict
    rejecting = [f for f in verdict.findings if severities.get(f.kind) is Severity.REJECT]
    if verdict.rejected and any(f.kind not in severities for f in verdict.findings):
        return verdict
    if bool(rejecting) is verdict.rejected:
        return verdict
    # A p-value speaks for the rule's own outcome: beside the other one, a shared budget would take
    # it for a reason to turn that round again.
    if not rejecting:
        return replace(verdict, outcome=Outcome.ACCEPT, cause=Cause.JUDGED, p_value=None)
    others = [f for f in verdict.findings if severities.get(f.kind) is not Severity.REJECT]
    return replace(verdict, outcome=Outcome.REJECT, p_value=None, findings=(*rejecting, *others))


def short_form(rules: RuleOptions, severity: str, kinds: Collection[str]) -> RuleOptions:
    """The options of a rule with one severity for some kinds, where none is said for them."""
    said: object = rules.get("severity")
    if not isinstance(said, Mapping | None):
        return rules  # refused where severities are read
    return {**rules, "severity": {**dict.fromkeys(kinds, severity), **(said or {})}}


def severities_of(
    kinds: Collection[str],
    severity: object,
    known: Collection[Severity] = tuple(Severity),
    *,
    confirm: bool = False,
) -> dict[str, Severity]:
    """The severity of each kind: what is given for it, or that of `SEVERITY`.

    Args:
        kinds: All that a verifier can find.
        severity: A mapping of some of them; None = none is given.
        known: What a severity may be.
        confirm: Whether a reader is asked about kinds of severity ``confirm``.

    Raises:
        ValueError: what is given is not that.
    """
    if not isinstance(confirm, bool):
        raise ValueError(f"confirm: expected true or false, got {confirm!r:.80}")
    if not isinstance(severity, Mapping | None):
        raise ValueError(f"severity: expected a mapping of kinds, got {severity!r:.80}")
    severities = {kind: SEVERITY[kind] for kind in sorted(kinds)}
    for kind, said in (severity or {}).items():
        try:
            choose(sorted(kinds), str(kind))
        except UnknownNameError as error:
            raise ValueError(f"severity: {error}") from None
        try:
            severities[kind] = Severity(choose([one.value for one in known], str(said)))
        except UnknownNameError as error:
            raise ValueError(f"severity.{kind}: {error}") from None
    if not confirm:
        for kind, own in severities.items():
            if own is Severity.CONFIRM:
                severities[kind] = WITHOUT_READER.get(kind, Severity.REPORT)
    return severities
