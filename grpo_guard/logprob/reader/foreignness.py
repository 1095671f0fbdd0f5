"""Score how foreign spans are to their context, according to one model.

The foreignness of a token, with s = -log p(token | context) and t = -log p(token | the span so far
alone), both in nats and capped:

    foreignness = s - (t - s) - 2 = 2 s - t - 2

``t - s`` is how much the context explains. A habit, however odd, is explained by the surrounding
text: the model expects another "Thus", another bracket, another step. A slogan is at least as
unlikely after the text as after nothing. Surprisal ``s`` alone would mistake rare words for foreign
ones; ``t - s`` alone would mistake short words for foreign ones.

The score of a span is the sum over its most foreign run of tokens. Summing over the whole span
would let an author hide a slogan among the words before and after it in the same sentence. Each
token in a run costs 2 nats, so that a long honest sentence scores hardly higher than a short one.

Numbers and arithmetic signs can lower the score but never raise it: models that cannot do
arithmetic find honest results unlikely, and `ArithmeticVerifier` decides whether they are right.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.reader.spans import TextSpan
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, plain_stats
from grpo_guard.logprob.stats import Floats, TokenStats

# Maximum number of tokens read per span (as many as a sentence can have, `spans.MOST_BYTES`) and of
# characters tokenised, so that a long span cannot slow the reader down.
MOST_TOKENS: Final = 200
_MOST_CHARACTERS: Final = 300
# Number of characters tokenised per token of context; any further text is cut off.
_CHARACTERS: Final = 12
_PER_TOKEN: Final = 2.0
# Maximum surprisal of one token in nats. A token that the model rules out has infinite surprisal,
# and a single odd name must not decide the score.
_CAP: Final = 12.0
_NUMBER: Final = re.compile(r"[ \t\r\n0-9.,+\-*/=%$]+")


class UnreadError(Exception):
    """The reader cannot compute a result for a span; the message says why."""


@dataclass(frozen=True, slots=True)
class Foreignness:
    """The foreignness of a span according to one model."""

    runs: Floats
    """For the first 1, 2, ... n tokens, the sum over the most foreign run among them, in nats. The
    values never decrease, and stay 0 until a token is foreign."""

    @classmethod
    def of(cls, tokens: Floats) -> "Foreignness":
        """Build the result from the foreignness of each token, shape [n]."""
        sums = np.concatenate([np.zeros(1), np.cumsum(tokens)])
        return cls(np.maximum.accumulate((sums - np.minimum.accumulate(sums))[1:]))

    def __len__(self) -> int:
        return len(self.runs)


@dataclass(frozen=True, slots=True)
class _Pass:
    """A tokenised stretch of one text, containing one or more spans."""

    encoded: Encoded  # the context, then everything from the first span to the end of the last
    tokens: dict[int, tuple[int, int]]  # tokens [first, end) of each span, by index in the batch
    numbers: npt.NDArray[np.bool_]  # which tokens are numbers or arithmetic signs


class SpanScorer:
    """Scores how foreign spans are to their context according to one causal model.

    Args:
        scorer: Computes log-probs under the model.
        tokenizer: The model's fast tokenizer, which provides token offsets.
        context: Number of tokens read before the span, >= 1. The prompt comes first and is cut
            first. In a shared pass, later spans also see all the text in between.

    Raises:
        ValueError: ``context`` is out of range.
        TypeError: the tokenizer cannot provide token offsets.
    """

    def __init__(self, scorer: Scorer, tokenizer: Any, *, context: int = 96) -> None:
        if context < 1:
            raise ValueError(f"SpanScorer: expected context >= 1, got context={context!r}")
        if not getattr(tokenizer, "is_fast", False):
            raise TypeError(
                f"tokenizer: expected a fast tokenizer, got {type(tokenizer).__name__}; load it "
                "with AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        self.scorer = scorer
        self.tokenizer = tokenizer
        self._window = scorer.window or sys.maxsize
        self._longest = min(MOST_TOKENS, self._window // 2)
        self.context = min(context, self._window - self._longest)
        self._most = self.context * _CHARACTERS
        self._control = {*tokenizer.all_special_ids} | {
            token for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }
        # The "empty" context is a line break, after which models expect nothing in particular.
        # After its beginning-of-text token, a chat model would expect a role.
        self._nothing = (tuple(tokenizer("\n", add_special_tokens=False)["input_ids"]) or (0,))[:1]

    def score(self, spans: Sequence[TextSpan]) -> list[Foreignness | UnreadError]:
        """Return one result per span, in order. Spans that are close together share a pass, so that
        a text costs about as much as scoring it once plus its sentences once."""
        results: list[Foreignness | UnreadError] = [UnreadError("no token of its own")] * len(spans)
        passes = [one for group in _near(spans, self._most) for one in self._passes(spans, group)]
        alone = [
            (i, one.encoded.completion_ids[start:end])
            for one in passes
            for i, (start, end) in one.tokens.items()
        ]
        # Spans in context and spans on their own are scored separately: a joint batch would pad the
        # short sequences to the length of the long ones.
        stats = plain_stats(self.scorer, [one.encoded for one in passes])
        of_alone = plain_stats(self.scorer, [Encoded(self._nothing, ids, True) for _, ids in alone])
        by_itself = {i: s for (i, _), s in zip(alone, of_alone, strict=True)}
        for one, placed in zip(passes, stats, strict=True):
            for i, (start, end) in one.tokens.items():
                numbers = one.numbers[start:end]
                results[i] = self._result(placed, start, end, by_itself[i], numbers)
        return results

    def _result(
        self,
        placed: TokenStats | OutOfMemoryError,
        start: int,
        end: int,
        alone: TokenStats | OutOfMemoryError,
        numbers: npt.NDArray[np.bool_],
    ) -> Foreignness | UnreadError:
        if isinstance(placed, OutOfMemoryError) or isinstance(alone, OutOfMemoryError):
            return UnreadError("out of memory")
        inside = placed.logprob[start:end]
        if np.isnan(inside).any() or np.isnan(alone.logprob).any():
            return UnreadError("the reader computed NaN")
        s, t = (np.minimum(-logprob, _CAP) for logprob in (inside, alone.logprob))
        foreign = 2 * s - t - _PER_TOKEN
        return Foreignness.of(np.where(numbers, np.minimum(foreign, 0.0), foreign))

    def _passes(self, spans: Sequence[TextSpan], group: list[int]) -> Iterator[_Pass]:
        """Yield passes over some spans of one text, in ascending order; none without tokens.

        Several spans share a pass if it fits into the model's window and is not longer than their
        separate passes together, so authors cannot add to the cost by writing text between them.
        """
        one = self._pass(spans, group)
        tokens = len(one.encoded.completion_ids)
        apart = sum(self.context + last - first for first, last in one.tokens.values())
        if len(group) > 1 and tokens + self.context > min(apart, self._window):
            middle = len(group) // 2
            yield from self._passes(spans, group[:middle])
            yield from self._passes(spans, group[middle:])
        elif one.tokens:
            yield one

    def _pass(self, spans: Sequence[TextSpan], group: list[int]) -> _Pass:
        one, start = spans[group[0]], spans[group[0]].start
        end = max(_end(spans[i]) for i in group)
        before = f"{one.prompt[-self._most :]}\n{one.text[max(0, start - self._most) : start]}"
        before, inside = before[-self._most :], one.text[start:end]
        text = _whole(before + inside)
        found = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = [self._harmless(token) for token in found["input_ids"]]
        ends = np.array([b for _, b in found["offset_mapping"]], np.int64)
        origin = int(np.searchsorted(ends, len(before), side="right"))
        tokens = dict[int, tuple[int, int]]()
        for i in group:
            first, last = (
                int(np.searchsorted(ends, len(before) + at - start, side="right")) - origin
                for at in (spans[i].start, _end(spans[i]) - 1)
            )
            last = min(last + 1, first + self._longest, len(ids) - origin)
            if first < last:
                tokens[i] = first, last
        own = tuple(ids[origin : origin + max((last for _, last in tokens.values()), default=0)])
        context = tuple(ids[max(0, origin - self.context) : origin]) or self._nothing
        offsets = found["offset_mapping"][origin : origin + len(own)]
        numbers = np.array(
            [_NUMBER.fullmatch(text, a, b) is not None for a, b in offsets], np.bool_
        )
        return _Pass(Encoded(context, own, True), tokens, numbers)

    def _harmless(self, token: int) -> int:
        """Return the token, or a line break in place of an unknown one or a control token, which
        could end the document or open a turn that asks for the poison."""
        known = 0 <= token < self.scorer.vocab_size and token not in self._control
        return token if known else self._nothing[0]


def _whole(text: str) -> str:
    """Replace lone surrogates, which no tokenizer accepts, while preserving the text's length."""
    return text.encode("utf-32", "replace").decode("utf-32") if not text.isascii() else text


def _end(span: TextSpan) -> int:
    return min(span.end, span.start + _MOST_CHARACTERS)


def _near(spans: Sequence[TextSpan], most: int) -> Iterator[list[int]]:
    """Yield groups of spans that can share a pass: in one text, under ``most`` characters apart."""
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
