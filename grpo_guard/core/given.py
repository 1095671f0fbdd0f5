"""Spans of a completion that were not sampled (tool results, user turns), and who vouches for them.

Such spans are exempt from checks, so an attacker would mark poison as given to get it skipped. A
sender's claim alone therefore exempts nothing. Log-prob checks treat spans masked by the trainer as
context, because poison in them is not trained on. Text rules skip only spans known to come from a
tool or user, either because the trainer requested them itself or because the guard's `environment`
confirmed them. For text rules a mask is not enough: a reward reads masked text, and the rest of the
answer builds on it.
"""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeAlias

Span: TypeAlias = tuple[int, int]

# Maximum number of given spans in a completion. Each one costs a call to the environment, and
# senders control how many there are.
MAX_SPANS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Given:
    """Ordered, disjoint spans of a completion that its author did not write. Raises ValueError if
    they do not have the form below, or there are more than `MAX_SPANS`.

    Args:
        tokens: Half-open spans of ``completion_ids``, none of them empty; () without ids.
        chars: The same spans in characters of ``text``, one for each span in ``tokens`` if there
            are ids. A span is empty if none of its tokens is visible in the text.
        masked: Whether the trainer excludes these tokens from training, whatever their origin.
        known: Whether the spans are known to come from a tool or user, because the trainer
            requested them itself. A peer's claims are checked by the ``environment`` of a `Guard`.
    """

    tokens: tuple[Span, ...] = ()
    chars: tuple[Span, ...] = ()
    masked: bool = False
    known: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _spans("tokens", self.tokens, least=1))
        object.__setattr__(self, "chars", _spans("chars", self.chars, least=0))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Given":
        """Read spans claimed by a sender, such as ``{"tokens": [[2, 9]], "chars": [[10, 40]]}``.

        The result is neither masked nor known. Raises ValueError if a key is unknown, or the spans
        do not have the form required above.
        """
        if not {"tokens", "chars"}.issuperset(data):
            raise ValueError("an object with only tokens and chars")
        return cls(data.get("tokens", ()), data.get("chars", ()))

    def placed(self, tokens: int | None, chars: int) -> "Given | None":
        """Fit the spans to a completion of this many tokens and characters; None if no spans
        remain. For a completion without ids, ``tokens`` is None and token spans are dropped. Raises
        ValueError if a span extends beyond the completion, or the numbers of token and character
        spans differ."""
        given = self if tokens is not None or not self.tokens else replace(self, tokens=())
        if tokens is not None and len(given.tokens) != len(given.chars):
            raise ValueError("as many spans of tokens as of characters")
        for name, spans, end in (
            ("tokens", given.tokens, tokens or 0),
            ("chars", given.chars, chars),
        ):
            if spans and spans[-1][1] > end:
                raise ValueError(f"{name} that end at {end} or before")
        return given if given.chars else None


def between(spans: Iterable[Span], length: int) -> list[Span]:
    """Return the stretches before, between and after the spans; some can be empty."""
    around, start = [], 0
    for begin, end in spans:
        around.append((start, begin))
        start = end
    return [*around, (start, length)]


def stretches(spans: Iterable[Span], length: int) -> list[Span]:
    """Return the author's stretches alternating with the given spans, starting and ending with the
    author's; some can be empty."""
    spans = [*spans]
    around = between(spans, length)
    given = [*spans, (length, length)]
    return [one for pair in zip(around, given, strict=True) for one in pair][:-1]


def _spans(name: str, value: Any, *, least: int) -> tuple[Span, ...]:
    form = f"{name} as at most {MAX_SPANS} spans [start, end), in order and not overlapping"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(form)
    spans: list[Span] = []
    for pair in islice(value, MAX_SPANS + 1):
        try:
            start, end = (operator.index(place) for place in islice(pair, 3))
        except (TypeError, ValueError):
            raise ValueError(form) from None
        if not (spans[-1][1] if spans else 0) <= start <= end - least or len(spans) == MAX_SPANS:
            raise ValueError(form)
        spans.append((start, end))
    return tuple(spans)
