"""`RuleVerifier`: rules produce findings, and a severity table decides what each finding does."""

import copy
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypedDict

from grpo_guard.content.endings import end_marks_noted
from grpo_guard.content.json_text import as_read
from grpo_guard.content.severity import Kind, Severity
from grpo_guard.core.arguments import is_finite, require_level
from grpo_guard.core.completion import Completion
from grpo_guard.core.registry import UnknownNameError, choose
from grpo_guard.core.scope import Runnable, Scope
from grpo_guard.core.supervise import supervised_each
from grpo_guard.core.turns import OwnText, own_text, turns
from grpo_guard.core.verdict import Cause, Outcome, Verdict, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.nodes.counts import COUNT_ALPHA, NOTHING, Counts
from grpo_guard.nodes.e_process_memory import EProcessMemory
from grpo_guard.nodes.store import NodeStore, book_name


class RuleOptions(TypedDict, total=False):
    """Options accepted by every rule in addition to its own."""

    severity: Mapping[str, str] | None
    confirm: bool
    store: NodeStore | None
    count_alpha: float
    count_odds: float


class RuleVerifier(CompletionVerifier):
    """Base class of verifiers whose verdicts follow from the severities of their findings.

    Subclasses implement `look` and declare in ``KINDS`` what it can find. A finding of severity
    ``reject`` rejects its completion. A finding of severity ``count`` rejects once its node has
    such findings more often, beyond chance, than the other nodes that answered the same prompts
    (`Counts`); if completions have no node, or fewer than three nodes answered, it is only
    reported. ``report`` never affects the verdict.

    Args:
        severity: Severities that override ``KINDS`` for some kinds of findings: ``"reject"``,
            ``"confirm"``, ``"count"`` or ``"report"``.
        confirm: Whether findings of severity ``confirm`` are left to a `ReaderVerifier`. If False,
            `Kind.without_reader` decides what they do.
        store: Where counts are kept, under the verifier's name; None to keep them in this object.
        count_alpha: Probability, in (0, 1), that any honest node ever loses anything to this rule's
            counting. The default is half of 1e-3, because two of our rules count by default.
        count_odds: How many times an honest node's odds of a counted finding may exceed those of
            its honest peers on the same prompt, in [1, 100].

    Raises:
        ValueError: an argument is out of range or of the wrong type.

    Attributes:
        KINDS: The kinds of findings that `look` can make, and what each of them does.
        counts: Counts per node, or None if no kind counts.
        scope: What a finding depends on. With ``"completion"``, each call to `look` gets a bounded
            amount of text and has its own time-out; see `supervised`. Verdicts of a rule that
            counts also depend on its counts, so instances of such a rule have the scope
            ``"history"``.
        by_turn: Kinds of findings that depend on where turns begin and end. Rules never see
            text known to come from a tool or a user.
        look_timeout: Maximum duration of one call to `look`, in seconds.
    """

    KINDS: ClassVar[Mapping[str, Kind]] = {}
    # Counting needs the whole batch, so only `look` is split and timed. With a single time-out for
    # the batch, one author's long texts would make the guard abstain on everyone's completions.
    timeout = None
    look_timeout: float | None = 600.0
    in_workers = True
    by_turn: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        *,
        severity: Mapping[str, str] | None = None,
        confirm: bool = False,
        store: NodeStore | None = None,
        count_alpha: float = COUNT_ALPHA,
        count_odds: float = 3.0,
    ) -> None:
        require_level("count_alpha", count_alpha)
        if not is_finite(count_odds) or not 1 <= count_odds <= 100:
            raise ValueError(f"count_odds: expected a number in [1, 100], got {count_odds!r:.80}")
        if store is not None and not isinstance(store, NodeStore):
            raise ValueError(f"store: expected a NodeStore or None, got {store!r:.80}")
        self.confirm = confirm
        self.severities = severities_of(self.KINDS, severity, confirm=confirm)
        self.counting = frozenset(k for k, s in self.severities.items() if s is Severity.COUNT)
        self.store = store
        self.counts: Counts | None = None
        if self.counting:
            e_processes = EProcessMemory(store=store, name=book_name(self.name))
            self.counts = Counts(e_processes, count_alpha, count_odds)
        self._look: Runnable = _Look(self, self.scope)
        if self.counting:
            self.scope = "history"

    @abstractmethod
    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion with everything found, ignoring all severities.

        Abstentions are final, and so are rejections for anything other than findings of ``KINDS``
        (text that is empty or too long). Otherwise the findings decide; a rejection that is upheld
        keeps its cause and p-value.
        """

    @property
    def idle_without(self) -> Mapping[str, str]:
        return {"node": "counts no findings"} if self.counting else {}

    @property
    def shares_calls(self) -> bool:
        return self._look.scope == "completion"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, decided by the severity of its findings."""
        return self.verify_each([batch])[0]

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        """Return the verdicts of `verify` for each batch; findings are counted batch by batch."""
        looked = supervised_each(self._look, batches)
        return [self._counted(b, found) for b, found in zip(batches, looked, strict=True)]

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
        """The runnable that calls `look`. If its scope is ``"completion"``, it can be replaced by a
        runnable that queries a copy of this rule in another process."""
        return self._look

    @reading.setter
    def reading(self, reading: Runnable) -> None:
        self._look = reading

    def reader(self) -> Self:
        """Return a copy for another process; the copy reads texts but does no counting."""
        copied = copy.copy(self)
        copied.store, copied.counts = None, None
        copied.scope = self._look.scope
        copied._look = _Look(copied, copied.scope)
        return copied

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON values."""
        return {"counts": None if self.counts is None else self.counts.e_processes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`.

        Raises:
            ValueError: the state is malformed, or has counts although this rule does not count.
        """
        counts = state.get("counts", self) if isinstance(state, dict) else self
        if counts is self or (counts is not None and self.counts is None):
            got = type(state).__name__ if counts is self else "counts"
            raise ValueError(f"{self.name}: expected what state_dict() returned, got {got}")
        if self.counts is not None:  # without counts in the state, start from nothing
            self.counts.e_processes.load_state_dict(NOTHING if counts is None else counts)

    def overlong(self, text: str, limit: int | None) -> Verdict | None:
        """Return a rejection if the text exceeds ``limit`` characters, which its author controls;
        otherwise None."""
        if limit is None or len(text) <= limit:
            return None
        message = f"{len(text)} characters; at most {limit} are read"
        return reject(self.name, Cause.OVERLONG, message)

    def kept(self, kinds: Sequence[str], limit: int) -> list[int]:
        """Return up to ``limit`` indices of findings, in order, dropping the least severe first
        and, of equal severity, repetitions of a kind.

        Otherwise harmless findings, which are easy to provoke, could crowd out the finding that
        rejects, or the one that tells a server to pay nothing.
        """
        ranks, seen = list[tuple[int, int]](), Counter[str]()
        for kind in kinds:
            ranks.append((_RANKS[self.severities[kind]], seen[kind]))
            seen[kind] += 1
        return sorted(sorted(range(len(kinds)), key=ranks.__getitem__)[:limit])


class _Look(Runnable):
    """A rule without its counting, for `supervised` to run."""

    scope: Scope = "batch"

    def __init__(self, rule: RuleVerifier, scope: Scope) -> None:
        self.rule, self.scope = rule, scope

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def timeout(self) -> float | None:
        return self.rule.look_timeout

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        # Decode JSON before any rule looks, so that all rules see what a JSON parser would see.
        if all(completion.verified_spans is None for completion in batch):
            return self._looked(batch)
        kinds = self.rule.by_turn
        parts = [self._parts(completion) for completion in batch]
        shown = [
            one
            for completion, own in zip(batch, parts, strict=True)
            for one in ([part.completion for part in own] or [completion])
        ]
        found = self._looked(shown)
        if len(found) != len(shown):
            return found  # `supervised` reports the mismatch
        left = iter(found)
        verdicts = []
        for own in parts:
            whole, *apart = [part.whole(next(left)) for part in own] or [next(left)]
            verdicts.append(_with_apart(whole, apart, kinds) if apart else whole)
        return verdicts

    def _looked(self, batch: Sequence[Completion]) -> list[Verdict]:
        found = self.rule.look([as_read(completion) for completion in batch])
        if "end_marks" not in self.rule.KINDS or len(found) != len(batch):
            return found
        return [end_marks_noted(v, one.text) for v, one in zip(found, batch, strict=True)]

    def _parts(self, completion: Completion) -> list[OwnText]:
        """Return the author's whole text, then each turn if the rule needs turns; empty if the
        completion was written entirely by its author."""
        own = own_text(completion)
        if own is None:
            return []
        return [own, *(turns(completion) if self.rule.by_turn else ())]


def _with_apart(whole: Verdict, apart: Sequence[Verdict], kinds: frozenset[str]) -> Verdict:
    """Return the verdict on an author's whole text, with the findings of ``kinds`` taken from the
    verdicts on its turns."""
    rest = tuple(finding for finding in whole.findings if finding.kind not in kinds)
    if whole.abstained or (whole.rejected and not whole.findings):
        return whole
    found = tuple(f for verdict in apart for f in verdict.findings if f.kind in kinds)
    if whole.rejected and rest:
        return replace(whole, findings=(*rest, *found))
    first = next((v for v in apart if v.rejected and kinds & {f.kind for f in v.findings}), None)
    if first is not None:
        return replace(first, findings=(*found, *rest))
    return replace(whole, outcome=Outcome.ACCEPT, cause=Cause.JUDGED, findings=(*rest, *found))


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}


def decided(verdict: Verdict, severities: Mapping[str, Severity]) -> Verdict:
    """Return the verdict with the severities of its findings applied.

    Abstentions are unchanged, and so are rejections with a finding whose kind is missing from
    ``severities``.

    Args:
        verdict: The verdict returned by a rule.
        severities: The severity of every kind that the rule can find.
    """
    if not verdict.findings or verdict.abstained:
        return verdict
    rejecting = [f for f in verdict.findings if severities.get(f.kind) is Severity.REJECT]
    if verdict.rejected and any(f.kind not in severities for f in verdict.findings):
        return verdict
    if bool(rejecting) is verdict.rejected:
        return verdict
    # A p-value supports the rule's own outcome. If it were kept alongside the opposite outcome, a
    # shared budget would treat it as grounds for flipping the outcome back.
    if not rejecting:
        return replace(verdict, outcome=Outcome.ACCEPT, cause=Cause.JUDGED, p_value=None)
    others = [f for f in verdict.findings if severities.get(f.kind) is not Severity.REJECT]
    return replace(verdict, outcome=Outcome.REJECT, p_value=None, findings=(*rejecting, *others))


def short_form(rules: RuleOptions, severity: str, kinds: Collection[str]) -> RuleOptions:
    """Return a rule's options with one severity for ``kinds``, unless the options set another."""
    chosen: object = rules.get("severity")
    if not isinstance(chosen, Mapping | None):
        return rules  # rejected by `severities_of`
    return {**rules, "severity": {**dict.fromkeys(kinds, severity), **(chosen or {})}}


def severities_of(
    kinds: Mapping[str, Kind],
    severity: object,
    known: Collection[Severity] = tuple(Severity),
    *,
    confirm: bool = False,
) -> dict[str, Severity]:
    """Return the severity of every kind of finding, taken from ``severity`` or else the default.

    Args:
        kinds: Every kind of finding that the verifier can make, and what it does by default.
        severity: A mapping that overrides the severity of some kinds, or None.
        known: The allowed severities.
        confirm: Whether a reader is consulted about kinds of severity ``confirm``.

    Raises:
        ValueError: an argument has the wrong type, or names an unknown kind or severity.
    """
    if not isinstance(confirm, bool):
        raise ValueError(f"confirm: expected true or false, got {confirm!r:.80}")
    if not isinstance(severity, Mapping | None):
        raise ValueError(f"severity: expected a mapping of kinds, got {severity!r:.80}")
    severities = {kind: kinds[kind].severity for kind in sorted(kinds)}
    for kind, level in (severity or {}).items():
        try:
            choose(sorted(kinds), str(kind))
        except UnknownNameError as error:
            raise ValueError(f"severity: {error}") from None
        try:
            severities[kind] = Severity(choose([one.value for one in known], str(level)))
        except UnknownNameError as error:
            raise ValueError(f"severity.{kind}: {error}") from None
    if not confirm:
        for kind, own in severities.items():
            if own is Severity.CONFIRM:
                severities[kind] = kinds[kind].without_reader
    return severities
