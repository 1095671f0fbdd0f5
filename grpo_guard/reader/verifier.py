"""ReaderVerifier: rules propose, a reader has the last word."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

from grpo_guard.completion import Completion
from grpo_guard.content.severity import RECURRENCE, Severity
from grpo_guard.nodes.store import NodeStore
from grpo_guard.p_values import p_text
from grpo_guard.reader.foreignness import UnreadError
from grpo_guard.reader.phrases import PhrasePlaces
from grpo_guard.reader.proposals import NodeSentences
from grpo_guard.reader.reader import Opinion, SpanReader
from grpo_guard.reader.spans import TextSpan, sentences
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.verifier import CompletionVerifier, Composed

FOREIGN: Final = "foreign_sentence"
MOST_FINDINGS: Final = 8
"""Findings of one completion that are read. So nobody can make the reader slow for others."""
MOST_SENTENCES: Final = 16
"""Sentences of one completion that are read, drawn by lot."""
MOST_OF_CONVICTED: Final = 128
"""Sentences that are read of each completion of a convicted node."""
RENEWED: Final = 0.02
"""Share of a node's completions that go on renewing its measure once that is full. A share, so that
reading costs the same part of generating whatever the size of a batch and the number of nodes."""
_RENEWING: Final = 4


@runtime_checkable
class _Rule(Protocol):
    name: str
    confirm: bool
    severities: dict[str, Severity]


@dataclass(frozen=True, slots=True)
class _Question:
    """One span that is put to the reader.

    Args:
        row: Of its completion in the batch.
        span: In its place.
        finding: What a rule found there; None = it is a sentence of a completion in which nothing
            was found.
    """

    row: int
    span: TextSpan
    finding: Finding | None = None


class ReaderVerifier(Composed):
    """Rejects what a rule proposes and a reader finds foreign in its place.

    The text of one completion does not say whether an odd form is a model's habit or an attacker's
    poison: a tool call, a heading, a character of another script. A model that reads the form in
    its place can tell. Findings whose severity is ``confirm`` are put to the reader; where at most
    a share ``level`` of honest text is as foreign, the completion is rejected, else the finding
    stays a report. Honest work is lost only where a rule and the reader are both wrong about it. A
    recurring phrase is decided over all places in which it was read (`PhrasePlaces`).

    The reader also proposes: evidence of foreign sentences adds up per node (`NodeSentences`). What
    a convicted node sends is rejected where it holds a sentence whose p-value is at most ``level``.

    The measure is honest text: sentences of the same batches in which nothing was found, per node
    (`HonestSpans`). A span that the reader cannot read makes the completion abstain.

    Args:
        verifier: Whose findings are confirmed: rules built with ``confirm=True``, alone or in an
            ensemble.
        reader: Reads the spans.
        level: Largest p-value at which a proposed span is foreign, in (0, 0.5).
        alpha: Chance that an honest node is ever convicted by its sentences, in (0, 0.5); None =
            sentences are only read as a measure: 64 of each node, then of 2 % of its completions.
        store: Where evidence about nodes lies; None: here.

    Raises:
        ValueError: an argument is out of range, or no rule in ``verifier`` leaves anything to a
            reader.

    Example:
        >>> rules = ScreensVerifier(confirm=True)
        >>> verifier = ReaderVerifier(rules, SpanReader(model, tokenizer))
    """

    name = "reader"

    def __init__(
        self,
        verifier: CompletionVerifier,
        reader: SpanReader,
        *,
        level: float = 0.05,
        alpha: float | None = 1e-3,
        store: NodeStore | None = None,
    ) -> None:
        super().__init__(verifier)
        _require_level("level", level)
        if alpha is not None:
            _require_level("alpha", alpha)
        self.verifier = verifier
        self.reader = reader
        self.level = level
        self._kinds = {
            rule.name: frozenset(k for k, s in rule.severities.items() if s is Severity.CONFIRM)
            for rule in _rules(verifier)
            if rule.confirm
        }
        if not any(self._kinds.values()):
            raise ValueError(
                "verifier: expected rules with confirm=True and findings of severity 'confirm', "
                f"got {verifier.name}"
            )
        self._phrases = PhrasePlaces()
        self._sentences = None if alpha is None else NodeSentences(alpha, store)
        # Which sentences are read is drawn, so that no author can place them.
        self._lots = random.SystemRandom()
        self._lock = threading.Lock()

    @property
    def joins(self) -> bool:
        return False  # what one batch teaches the reader, the next is judged by

    def state_dict(self) -> dict[str, Any]:
        """What the reader's evidence about nodes comes to, as plain JSON values."""
        known = self._sentences
        return {"sentences": known.fortunes.state_dict() if known else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: it is not of that form.
        """
        if not isinstance(state, dict) or (state.get("sentences") is None) != (
            self._sentences is None
        ):
            raise ValueError(f"{self.name}: expected what state_dict() gave")
        if self._sentences is not None:
            self._sentences.fortunes.load_state_dict(state["sentences"])

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts = supervised(self.verifier, batch)
        with self._lock:  # the measure and the phrases are of this batch and those before it
            questions = [*self._findings(batch, verdicts), *self._drawn(batch, verdicts)]
            read = self.reader.read(
                [q.span for q in questions], [q.finding is None for q in questions]
            )
            answers = self._answers(questions, read)
            foreign = self._foreign_sentences(batch, verdicts, questions, read)
        return [
            self._decided(v, answers.get(i, ()), foreign.get(i, ())) for i, v in enumerate(verdicts)
        ]

    def _findings(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict]
    ) -> Iterator[_Question]:
        for row, (completion, verdict) in enumerate(zip(batch, verdicts, strict=True)):
            if verdict.rejected:
                continue
            proposed = [
                (finding, finding.char_span)
                for leaf in _leaves(verdict)
                for finding in leaf.findings
                if finding.kind in self._kinds.get(leaf.verifier, ())
                and finding.char_span is not None
                and 0 <= finding.char_span[0] < finding.char_span[1] <= len(completion.text)
            ]
            for finding, (start, end) in proposed[:MOST_FINDINGS]:
                yield _Question(row, _placed(completion, start, end), finding)

    def _drawn(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict]
    ) -> Iterator[_Question]:
        """Sentences of completions in which nothing was found."""
        clean = [i for i, v in enumerate(verdicts) if v.accepted and not v.findings]
        self._lots.shuffle(clean)
        left = {batch[i].node: self.reader.wanted(batch[i].node) for i in clean}
        for i in clean:
            node = batch[i].node
            room = MOST_SENTENCES if self._sentences and node is not None else left[node]
            if room <= 0 and self._lots.random() < RENEWED:
                room = _RENEWING  # of one completion: its sentences share a pass
            if room <= 0:
                continue
            places = sentences(batch[i].text)
            for start, end in self._lots.sample(places, min(room, MOST_SENTENCES, len(places))):
                left[node] -= 1
                yield _Question(i, _placed(batch[i], start, end))

    def _answers(
        self, questions: Sequence[_Question], read: Sequence[Opinion | UnreadError | None]
    ) -> dict[int, list[tuple[Finding, float | UnreadError]]]:
        """By row, the findings that something is known of, with their p-values."""
        asked = [
            (q.row, q.finding, q.span, opinion)
            for q, opinion in zip(questions, read, strict=True)
            if q.finding is not None and opinion is not None
        ]
        for _, finding, span, opinion in asked:
            if finding.kind in RECURRENCE and isinstance(opinion, Opinion):
                self._phrases.add(span.node, _text(span), opinion.p_value)
        answers = defaultdict[int, list[tuple[Finding, float | UnreadError]]](list)
        for row, finding, span, opinion in asked:
            p: float | UnreadError | None
            p = opinion.p_value if isinstance(opinion, Opinion) else opinion
            if finding.kind in RECURRENCE and isinstance(opinion, Opinion):
                p = self._phrases.p_value(span.node, _text(span))
            if p is not None:
                answers[row].append((finding, p))
        return answers

    def _foreign_sentences(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        questions: Sequence[_Question],
        read: Sequence[Opinion | UnreadError | None],
    ) -> dict[int, list[Finding]]:
        """By row, the sentences that reject completions of convicted nodes."""
        if self._sentences is None:
            return {}
        p_values = defaultdict[int, list[float]](list)
        for question, opinion in zip(questions, read, strict=True):
            if question.finding is None and isinstance(opinion, Opinion):
                p_values[question.row].append(opinion.tail_p_value)
        convicted = self._sentences.convicted(batch, p_values)
        # Of these all sentences are read: the lots may have passed over the foreign one.
        spans = [
            (row, _placed(completion, start, end))
            for row, completion in enumerate(batch)
            if completion.node in convicted and not verdicts[row].rejected
            for start, end in sentences(completion.text)[:MOST_OF_CONVICTED]
        ]
        opinions = self.reader.read([span for _, span in spans], [False] * len(spans))
        found = defaultdict[int, list[Finding]](list)
        for (row, span), opinion in zip(spans, opinions, strict=True):
            if isinstance(opinion, Opinion) and opinion.p_value <= self.level:
                found[row].append(_finding(opinion.p_value, span))
        return {row: own[:MOST_FINDINGS] for row, own in found.items()}

    def _decided(
        self,
        verdict: Verdict,
        answers: Sequence[tuple[Finding, float | UnreadError]],
        sentences: Sequence[Finding],
    ) -> Verdict:
        """The verdict of the rules with the reader's word as one member more."""
        if not answers and not sentences:
            return verdict
        own = self._own_verdict(answers, sentences)
        members = (*(verdict.members or (verdict,)), own)
        if own.accepted or verdict.rejected or (own.abstained and verdict.abstained):
            return replace(verdict, members=members)
        places = {(f.kind, f.char_span) for f in own.findings}
        others = [f for f in verdict.findings if (f.kind, f.char_span) not in places]
        return replace(
            own, verifier=verdict.verifier, findings=(*own.findings, *others),
            seconds=verdict.seconds, members=members,
        )  # fmt: skip

    def _own_verdict(
        self, answers: Sequence[tuple[Finding, float | UnreadError]], sentences: Sequence[Finding]
    ) -> Verdict:
        known = [(p, finding) for finding, p in answers if isinstance(p, float)]
        foreign = [
            replace(f, message=f"{f.message}; {_share(p)}")
            for p, f in sorted(known, key=lambda one: one[0])
            if p <= self.level
        ]
        if foreign or sentences:
            return reject(self.name, findings=(*foreign, *sentences))
        unread = next((p for _, p in answers if isinstance(p, UnreadError)), None)
        if unread is not None:
            cause = Cause.OUT_OF_MEMORY if "memory" in str(unread) else Cause.FAULT
            return abstain(self.name, cause, f"the reader could not read a span: {unread}")
        return accept(self.name)


def _require_level(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 0.5:
        raise ValueError(f"{option}: expected a number in (0, 0.5), got {value!r:.80}")


def _placed(completion: Completion, start: int, end: int) -> TextSpan:
    return TextSpan(completion.trusted_prompt_text, completion.text, start, end, completion.node)


def _text(span: TextSpan) -> str:
    return span.text[span.start : span.end]


def _share(p: float) -> str:
    return f"foreign in its place: {p_text(p)} of honest text is as foreign"


def _finding(p: float, span: TextSpan) -> Finding:
    message = f"{_share(p)}, in a node whose sentences are foreign too often"
    return Finding(FOREIGN, message, char_span=(span.start, span.end))


def _leaves(verdict: Verdict) -> Iterator[Verdict]:
    for member in verdict.members:
        yield from _leaves(member)
    if not verdict.members:
        yield verdict


def _rules(verifier: CompletionVerifier) -> Iterator[_Rule]:
    if isinstance(verifier, Composed):
        for member in verifier.members:
            yield from _rules(member)
    elif isinstance(verifier, _Rule):
        yield verifier
