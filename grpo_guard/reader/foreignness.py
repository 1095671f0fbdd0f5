"""How foreign spans are to their context under one model: the score, and how it is computed.

Per token, with s = -log p(token | context) and t = -log p(token | the span so far alone), both in
nats and capped:

    foreignness = s - (t - s) = 2 s - t

``t - s`` is what the context explains. A habit, however odd, is explained by the text around it:
the model expects another "Thus", another bracket, another step. A slogan is as unlikely behind the
text as it is behind nothing, or more so. Surprisal alone mistakes rare words for foreign ones; what
the context explains, alone, mistakes short words for foreign ones. exp(s - t) is the likelihood
ratio of "written without regard to the context" against "written in it", the best statistic for one
against the other (Neyman and Pearson). docs/reader.md compares it with surprisal beyond entropy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, score_apart
from grpo_guard.logprob.stats import Floats, TokenStats
from grpo_guard.reader.spans import TextSpan
from grpo_guard.sampling import SamplingSpec

# The reader's own distribution, without any truncation.
_PLAIN: Final = SamplingSpec("transformers", temperature=1.0, top_k=0, top_p=1.0)
MOST_TOKENS: Final = 24
"""Tokens of a span that are read. Nobody can make a span slow by making it long."""
_CHARACTERS: Final = 12
"""Characters that are tokenised per token of context or span; what does not fit is cut."""


class UnreadError(Exception):
    """The reader computed nothing for a span; the message says why."""


@dataclass(frozen=True, slots=True)
class Foreignness:
    """What one model finds of a span.

    Args:
        summed: Foreignness of the first 1, 2, ... tokens together, in nats, shape [n], n >= 1.
    """

    summed: Floats

    def __len__(self) -> int:
        return len(self.summed)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One stretch of a text that holds several spans, as tokens.

    Args:
        encoded: Context, then everything from the first span to the end of the last.
        tokens: Of each span, by its place in the batch: [first, end) in the encoded completion.
    """

    encoded: Encoded
    tokens: dict[int, tuple[int, int]]


class SpanScorer:
    """Scores spans in their place under one causal model.

    Args:
        scorer: Of the model.
        tokenizer: The model's; a fast one, which tells where its tokens lie.
        context: Tokens before the span that are read, >= 1. The prompt comes first among them and
            is the first to be cut.
        cap: Nats that one token may add to a surprisal, > 0. A token that the model rules out has
            an infinite one, and a single odd name must not decide.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the tokenizer cannot say where its tokens lie.
    """

    def __init__(
        self, scorer: Scorer, tokenizer: Any, *, context: int = 96, cap: float = 12.0
    ) -> None:
        if context < 1 or not 0 < cap < float("inf"):
            raise ValueError(
                f"SpanScorer: expected context >= 1 and a finite cap > 0, got context={context!r}, "
                f"cap={cap!r}"
            )
        if not getattr(tokenizer, "is_fast", False):
            raise TypeError(
                f"tokenizer: expected a fast tokenizer, got {type(tokenizer).__name__}; load it "
                "with AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.context = context
        self.cap = cap
        self._control = [t for t in tokenizer.all_special_tokens if isinstance(t, str) and t]
        # A chat model's beginning of text announces a role; a line break announces nothing.
        self._nothing = (tuple(tokenizer("\n", add_special_tokens=False)["input_ids"]) or (0,))[:1]

    def score(self, spans: Sequence[TextSpan]) -> list[Foreignness | UnreadError]:
        """One result per span, in order.

        Spans of one text that lie near each other share a pass, so that reading all sentences of a
        text costs about as much as scoring the text and its sentences once.
        """
        results: list[Foreignness | UnreadError] = [UnreadError("no token of its own")] * len(spans)
        passes = [one for group in _near(spans, self._most) for one in self._passes(spans, group)]
        alone = [
            (i, one.encoded.completion_ids[start:end])
            for one in passes
            for i, (start, end) in one.tokens.items()
        ]
        # Apart: a batch of both would pad the short ones to the length of the long ones.
        stats = self._stats([one.encoded for one in passes])
        of_alone = self._stats([Encoded(self._nothing, ids, True) for _, ids in alone])
        by_itself = {i: s for (i, _), s in zip(alone, of_alone, strict=True)}
        for one, placed in zip(passes, stats, strict=True):
            for i, (start, end) in one.tokens.items():
                results[i] = self._result(placed, start, end, by_itself[i])
        return results

    def _stats(self, sequences: Sequence[Encoded]) -> list[TokenStats | OutOfMemoryError]:
        return score_apart(lambda some: self.scorer.score(some, _PLAIN), sequences)

    @property
    def _most(self) -> int:
        return self.context * _CHARACTERS

    def _result(
        self,
        placed: TokenStats | OutOfMemoryError,
        start: int,
        end: int,
        alone: TokenStats | OutOfMemoryError,
    ) -> Foreignness | UnreadError:
        if isinstance(placed, OutOfMemoryError) or isinstance(alone, OutOfMemoryError):
            return UnreadError("out of memory")
        inside = placed.logprob[start:end]
        if np.isnan(inside).any() or np.isnan(alone.logprob).any():
            return UnreadError("the reader computed NaN")
        s, t = (np.minimum(-logprob, self.cap) for logprob in (inside, alone.logprob))
        return Foreignness(np.cumsum(2 * s - t))

    def _passes(self, spans: Sequence[TextSpan], group: list[int]) -> Iterator[_Pass]:
        """The pass over some spans of one text, ascending; none where they hold no token."""
        one, start = spans[group[0]], spans[group[0]].start
        end = max(_end(spans[i]) for i in group)
        before = f"{one.prompt[-self._most :]}\n{one.text[max(0, start - self._most) : start]}"
        # The text is made harmless in one go, so that its characters keep their distances.
        before, inside = self._harmless(before)[-self._most :], self._harmless(one.text[start:end])
        found = self.tokenizer(
            before + inside, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids, ends = found["input_ids"], np.array([b for _, b in found["offset_mapping"]], np.int64)
        origin = int(np.searchsorted(ends, len(before), side="right"))
        tokens = dict[int, tuple[int, int]]()
        for i in group:
            first, last = (
                int(np.searchsorted(ends, len(before) + at - start, side="right")) - origin
                for at in (spans[i].start, _end(spans[i]) - 1)
            )
            last = min(last + 1, first + MOST_TOKENS, len(ids) - origin)
            if first < last:
                tokens[i] = first, last
        if tokens:
            own = tuple(ids[origin : origin + max(last for _, last in tokens.values())])
            context = tuple(ids[max(0, origin - self.context) : origin]) or self._nothing
            yield _Pass(Encoded(context, own, True), tokens)

    def _harmless(self, text: str) -> str:
        """The text without control tokens, at the same length.

        A control token that the text spells would end the document or open a turn in which somebody
        asks for the poison: the context would then explain it.
        """
        for token in self._control:
            if token in text:
                text = text.replace(token, " " * len(token))
        return text


def _end(span: TextSpan) -> int:
    return min(span.end, span.start + MOST_TOKENS * _CHARACTERS)


def _near(spans: Sequence[TextSpan], most: int) -> Iterator[list[int]]:
    """Places of spans that share a pass: in one text, less than ``most`` characters apart."""
    by_text = dict[tuple[str, str], list[int]]()
    for i, span in enumerate(spans):
        by_text.setdefault((span.prompt, span.text), []).append(i)
    for places in by_text.values():
        places.sort(key=lambda i: spans[i].start)
        group, reach = [places[0]], _end(spans[places[0]])
        for i in places[1:]:
            if spans[i].start - reach >= most:
                yield group
                group = []
            group.append(i)
            reach = max(reach, _end(spans[i]))
        yield group
