"""ReaderVerifier: rules propose findings, and a reader confirms or excuses them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

from grpo_guard.content.kinds import KINDS
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.severity import REPORT, Severity
from grpo_guard.core.arguments import require_level
from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.p_values import p_text
from grpo_guard.core.scope import Scope
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.logprob.reader.foreignness import UnreadError
from grpo_guard.logprob.reader.honest import Vote
from grpo_guard.logprob.reader.novelty import Novelty
from grpo_guard.logprob.reader.proposals import NodeSentences, PhrasePlaces
from grpo_guard.logprob.reader.reader import Opinion, SpanReader
from grpo_guard.logprob.reader.spans import TextSpan, drawn, happens, own_sentences
from grpo_guard.nodes.store import NodeStore

FOREIGN: Final = "foreign_sentence"
# Maximum number of findings and of sentences read per completion, drawn at random, so that no
# author can slow the reader down for others or hide one finding among many.
MOST_FINDINGS: Final = 8
MOST_SENTENCES: Final = 16
# All sentences of a convicted node's completion are read; one with more than this is rejected.
MOST_OF_CONVICTED: Final = 128
# Once a node's measure is full, this share of its completions keeps it fresh, with this many
# sentences each: few completions but many sentences, because a small model's pass takes the same
# time for any length.
RENEWED: Final = 0.01
_RENEWING: Final = 8


@runtime_checkable
class _Rule(Protocol):
    name: str
    confirm: bool
    severities: dict[str, Severity]


@dataclass(frozen=True, slots=True)
class _Question:
    row: int  # index of the completion in the batch
    span: TextSpan
    finding: Finding | None = None  # the rule's finding, or None for a sentence
    clean: bool = False  # whether no rule found anything there, so that it joins the measure
    asked: bool = True  # whether the span was drawn; if not, only prior knowledge counts


@dataclass(slots=True)
class _Results:
    known: list[tuple[Finding, float]] = field(default_factory=list)  # rules' findings, p-values
    foreign: list[Finding] = field(default_factory=list)  # findings of foreign sentences
    unread: UnreadError | None = None  # the error if a span could not be read


class ReaderVerifier(Composed):
    """Rejects completions with spans that a rule proposes and a reader finds foreign in context.

    The text of a single completion does not show whether an odd form (a tool call, a heading, a
    character from another script) is a model's habit or an attacker's poison. A model that reads
    the form in context can tell. The reader decides findings whose severity is ``confirm``: if at
    most a share ``level`` of honest text is as foreign, the completion is rejected; if the share is
    at least ``excuse``, the finding is merely reported. In between, the reader cannot tell, as in a
    language it hardly knows, and the finding has the same effect as without a reader. A recurring
    phrase is judged over all places where it was read (`PhrasePlaces`).

    The reader also makes proposals of its own: evidence of foreign sentences accumulates per node
    (`NodeSentences`). A convicted node's completion is rejected if it has a sentence with a p-value
    of at most ``level``.

    The measure is honest text: sentences from the same batches in which nothing was found, kept per
    node (`HonestSpans`). Until two other nodes have a measure, and among unnamed senders, the start
    profile decides (`start_profile`), and no node is convicted. If the reader cannot read a
    finding, or a sentence of a convicted node, the verdict on that completion is an abstention.

    Args:
        verifier: The verifier that proposes findings to confirm: rules built with ``confirm=True``,
            alone or in an ensemble.
        reader: The `SpanReader` that judges the spans.
        level: Maximum p-value at which a proposed span counts as foreign, in (0, 0.5).
        excuse: Minimum p-value at which the reader excuses a proposed span, in [``level``, 0.5).
        alpha: Probability that an honest node is ever convicted by its sentences, in (0, 0.5). If
            None, no node is convicted, and sentences are read only for the measure: 64 from each
            node, then in 1 % of its completions.
        store: Keeps the evidence about nodes, or None to keep it in this object.

    Raises:
        ValueError: an argument is out of range, or no rule in ``verifier`` leaves anything to a
            reader.

    Examples:
        >>> rules = ScreensVerifier(confirm=True)
        >>> verifier = ReaderVerifier(rules, SpanReader(model, tokenizer))
    """

    name = "reader"
    scope: Scope = "history"
    shares_calls = False  # the verifier learns from each batch before it judges the next

    def __init__(
        self,
        verifier: CompletionVerifier,
        reader: SpanReader,
        *,
        level: float = 0.05,
        excuse: float = 0.25,
        alpha: float | None = 1e-3,
        store: NodeStore | None = None,
    ) -> None:
        super().__init__(verifier)
        require_level("level", level, below=0.5)
        require_level("excuse", excuse, below=0.5)
        if excuse < level:
            raise ValueError(f"excuse: expected at least level={level}, got {excuse}")
        if alpha is not None:
            require_level("alpha", alpha, below=0.5)
        self.verifier = verifier
        self.reader = reader
        self.level = level
        self.excuse = excuse
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
        self._novelty = Novelty()
        self._sentences = None if alpha is None else NodeSentences(alpha, store)
        self._lock = Lock()

    def state_dict(self) -> dict[str, Any]:
        """Return the reader's evidence about nodes as plain JSON values."""
        known = self._sentences
        return {"sentences": known.e_processes.state_dict() if known else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`; raises ValueError for anything else."""
        if not isinstance(state, dict) or (state.get("sentences") is None) != (
            self._sentences is None
        ):
            raise ValueError(f"{self.name}: expected what state_dict() returned")
        if self._sentences is not None:
            self._sentences.e_processes.load_state_dict(state["sentences"])

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts = supervised(self.verifier, batch)
        results = defaultdict[int, _Results](_Results)
        with self._lock:  # the measure and the phrases cover this batch and all earlier ones
            questions = [*self._findings(batch, verdicts), *self._drawn(batch, verdicts)]
            asked = [q for q in questions if q.asked]
            opinions = self.reader.read([q.span for q in asked], [q.clean for q in asked])
            unread = [(q, None) for q in questions if not q.asked]
            self._answer(results, [*unread, *zip(asked, opinions, strict=True)])
            self._foreign_sentences(results, batch, verdicts, asked, opinions)
        return [self._decided(v, results[i]) if i in results else v for i, v in enumerate(verdicts)]

    def _findings(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict]
    ) -> Iterator[_Question]:
        for row, (completion, verdict) in enumerate(zip(batch, verdicts, strict=True)):
            if verdict.rejected:
                continue
            proposed = drawn(
                (finding, finding.char_span)
                for leaf in _leaves(verdict)
                for finding in leaf.findings
                if finding.kind in self._kinds.get(leaf.verifier, ())
                and finding.char_span is not None
                and 0 <= finding.char_span[0] < finding.char_span[1] <= len(completion.text)
            )
            prompt = completion.trusted_prompt_text if proposed else ""
            for place, (finding, span) in enumerate(proposed):
                placed = TextSpan(prompt, completion.text, *span, completion.node)
                yield _Question(row, placed, finding, asked=place < MOST_FINDINGS)

    def _drawn(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict]
    ) -> Iterator[_Question]:
        """Draw sentences of named nodes, for the measure and as evidence.

        A sentence with a finding that does not reject still counts as evidence. Otherwise an author
        could protect a slogan by putting a careless sum next to it.
        """
        rows = drawn(
            i for i, v in enumerate(verdicts) if not v.rejected and batch[i].node is not None
        )
        left = {batch[i].node: self.reader.wanted(batch[i].node) for i in rows}
        for i in rows:
            node = batch[i].node
            weighed = self._sentences is not None
            room = MOST_SENTENCES if weighed else min(left[node], MOST_SENTENCES)
            if room <= 0 and happens(RENEWED):
                room = _RENEWING
            if room <= 0:
                continue
            found = [f.char_span for f in verdicts[i].findings if f.char_span is not None]
            prompt = batch[i].trusted_prompt_text
            for start, end in drawn(own_sentences(batch[i]), room):
                clean = not any(a < end and start < b for a, b in found)
                if clean or weighed:
                    left[node] -= clean
                    span = TextSpan(prompt, batch[i].text, start, end, node)
                    yield _Question(i, span, clean=clean)

    def _answer(
        self,
        results: dict[int, _Results],
        answered: Sequence[tuple[_Question, Opinion | UnreadError | None]],
    ) -> None:
        """Record the p-values known for findings; None is the opinion on an unread span."""
        found = [(q.row, q.finding, q.span, o) for q, o in answered if q.finding is not None]
        for _, finding, span, opinion in found:
            if finding.kind in RecurrenceVerifier.KINDS and isinstance(opinion, Opinion):
                self._phrases.add(span.node, _text(span), opinion.p_value)
        for row, finding, span, opinion in found:
            if isinstance(opinion, UnreadError):
                results[row].unread = opinion
            elif finding.kind in RecurrenceVerifier.KINDS:
                if (p := self._phrases.p_value(span.node, _text(span))) is not None:
                    results[row].known.append((finding, p))
            elif opinion is not None:
                results[row].known.append((finding, opinion.p_value))

    def _weighed(self, question: _Question, vote: Vote) -> Vote:
        """Return the vote that counts as evidence. A sentence that its node has used before shows
        nothing new: an honest node may end each answer in a way that no other does."""
        node, span = question.span.node, question.span
        if node is None or self._novelty.is_new(node, _text(span)):
            return vote
        return Vote(1.0, beyond=False)

    def _foreign_sentences(
        self,
        results: dict[int, _Results],
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        questions: Sequence[_Question],
        opinions: Sequence[Opinion | UnreadError],
    ) -> None:
        """Record the foreign sentences that get convicted nodes' completions rejected."""
        if self._sentences is None:
            return
        votes = defaultdict[int, list[Vote]](list)
        for question, opinion in zip(questions, opinions, strict=True):
            if question.finding is not None or not isinstance(opinion, Opinion):
                continue
            if opinion.excused is not None:
                votes[question.row].append(self._weighed(question, opinion.excused))
        convicted = self._sentences.convicted(batch, votes)
        # All sentences from convicted nodes are read: the draw may have missed the foreign one.
        spans = list[tuple[int, TextSpan]]()
        for row, completion in enumerate(batch):
            if completion.node in convicted and not verdicts[row].rejected:
                prompt = completion.trusted_prompt_text
                places = list(islice(own_sentences(completion), MOST_OF_CONVICTED + 1))
                if len(places) > MOST_OF_CONVICTED:
                    results[row].foreign.append(_too_many(completion, places[-1][0]))
                    continue
                spans += [
                    (row, TextSpan(prompt, completion.text, *place, completion.node))
                    for place in places
                ]
        read = self.reader.read([span for _, span in spans], [False] * len(spans))
        for (row, span), opinion in zip(spans, read, strict=True):
            if isinstance(opinion, UnreadError):
                results[row].unread = opinion
            elif opinion.p_value <= self.level:
                results[row].foreign.append(_finding(opinion.p_value, span))

    def _decided(self, verdict: Verdict, results: _Results) -> Verdict:
        own = self._own_verdict(results)
        members = (*(verdict.members or (verdict,)), own)
        if own.accepted or verdict.rejected or (own.abstained and verdict.abstained):
            return replace(verdict, members=members)
        places = {(f.kind, f.char_span) for f in own.findings}
        others = [f for f in verdict.findings if (f.kind, f.char_span) not in places]
        return replace(
            own, verifier=verdict.verifier, findings=(*own.findings, *others),
            seconds=verdict.seconds, members=members,
        )  # fmt: skip

    def _rejects(self, kind: str, p_value: float) -> bool:
        if p_value <= self.level:
            return True
        # In between, the reader cannot tell, and the rule's own severity applies. Otherwise slogans
        # would be excused in any language the reader hardly knows.
        alone = KINDS.get(kind, REPORT).without_reader
        return p_value < self.excuse and alone is Severity.REJECT

    def _own_verdict(self, results: _Results) -> Verdict:
        foreign = [
            replace(f, message=f"{f.message}; {_share(p)}")
            for f, p in sorted(results.known, key=lambda one: one[1])
            if self._rejects(f.kind, p)
        ]
        if foreign or results.foreign:
            return reject(self.name, findings=(*foreign, *results.foreign[:MOST_FINDINGS]))
        if results.unread is not None:
            cause = Cause.OUT_OF_MEMORY if "memory" in str(results.unread) else Cause.FAULT
            return abstain(self.name, cause, f"the reader could not read a span: {results.unread}")
        return accept(self.name)


def _text(span: TextSpan) -> str:
    return span.text[span.start : span.end]


def _share(p: float) -> str:
    return f"foreign in its place: {p_text(p)} of honest text is as foreign"


def _finding(p: float, span: TextSpan) -> Finding:
    message = f"{_share(p)}, from a node whose sentences are too often foreign"
    return Finding(FOREIGN, message, char_span=(span.start, span.end))


def _too_many(completion: Completion, unread: int) -> Finding:
    message = (
        f"more than the {MOST_OF_CONVICTED} sentences read from a node whose sentences are too "
        "often foreign"
    )
    return Finding(FOREIGN, message, char_span=(unread, len(completion.text)))


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
