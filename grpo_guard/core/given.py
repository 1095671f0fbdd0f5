"""Spans of a completion that nobody sampled (tool results, user turns), and who vouches for them.

A span is an exemption, and an attacker would mark poison as given so that it is skipped. So a
sender's claim alone exempts nothing. Log-prob checks use as context what the trainer masks, since
poison there is not trained on. Text rules skip only what is known to be a tool's or user's text,
because the trainer asked for it itself or the guard's `environment` confirmed it. For them a mask
is not enough: a reward reads masked text, and the rest of the answer builds on it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeAlias

Span: TypeAlias = tuple[int, int]

# Turns of one completion. Each costs a call to the environment, and senders decide how many.
MAX_SPANS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Given:
    """Ordered, disjoint spans of a completion that its author did not write.

    Args:
        tokens: Half-open spans of ``completion_ids``, none empty; () without ids.
        chars: The same spans in characters of ``text``, one for each of ``tokens`` if there are
            ids; empty if none of a span's tokens is visible.
        masked: The trainer does not train on these tokens, whatever their origin.
        known: They are known to be a tool's or user's: the trainer asked for them itself. For a
            peer's claims, `Guard` has ``environment``.

    Raises:
        ValueError: spans are not of that form, or more than `MAX_SPANS`.
    """

    tokens: tuple[Span, ...] = ()
    chars: tuple[Span, ...] = ()
    masked: bool = False
    known: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _spans("tokens", self.tokens, least=1))
        object.__setattr__(self, "chars", _spans("chars", self.chars, least=0))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Given:
        """Read a claim, neither masked nor known: ``{"tokens": [[2, 9]], "chars": [[10, 40]]}``.
        Raises ValueError as the constructor, and for an unknown key."""
        if not {"tokens", "chars"}.issuperset(data):
            raise ValueError("an object with tokens and chars alone")
        return cls(data.get("tokens", ()), data.get("chars", ()))

    def placed(self, tokens: int | None, chars: int) -> Given | None:
        """The spans fitted to a completion; None if none is left. Without ids, ``tokens`` is None
        and token spans are dropped.

        Raises:
            ValueError: spans exceed it, or there are not as many of tokens as of characters.
        """
        given = self if tokens is not None or not self.tokens else replace(self, tokens=())
        if tokens is not None and len(given.tokens) != len(given.chars):
            raise ValueError("as many spans of tokens as of characters")
        for name, spans, end in (
            ("tokens", given.tokens, tokens or 0),
            ("chars", given.chars, chars),
        ):
            if spans and spans[-1][1] > end:
                raise ValueError(f"{name} that end by {end}")
        return given if given.chars else None


def between(spans: Iterable[Span], length: int) -> list[Span]:
    """The stretches around the spans, one more than there are spans; some may be empty."""
    around, start = [], 0
    for begin, end in spans:
        around.append((start, begin))
        start = end
    return [*around, (start, length)]


def stretches(spans: Iterable[Span], length: int) -> list[Span]:
    """The author's and given stretches in turn, the author's first and last; some may be empty."""
    spans = [*spans]
    around = between(spans, length)
    given = [*spans, (length, length)]
    return [one for pair in zip(around, given, strict=True) for one in pair][:-1]


def _spans(name: str, value: Any, *, least: int) -> tuple[Span, ...]:
    form = f"{name} as at most {MAX_SPANS} spans [start, end), in order and apart"
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
