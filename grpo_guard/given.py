"""What of a completion nobody sampled: tools' results and users' turns, and who says so.

A span is an exemption, and an attacker would mark his poison as given to have it skipped. So what a
sender says of it exempts nothing. Log-prob checks take as context what the trainer masks: poison
there is not trained on. Text rules leave out what is known to be a tool's or user's words, since
the trainer asked them itself or the guard's `environment` has said the same again. A mask alone is
not enough for them: a reward reads what is masked, and what follows is written upon it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeAlias

Span: TypeAlias = tuple[int, int]

# Turns of one completion. Each costs a call of an environment, and its sender decides how many.
MAX_SPANS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Given:
    """Spans of a completion that its author did not write, in order and apart.

    Args:
        tokens: Half-open spans of ``completion_ids``, none empty; () where there are no ids.
        chars: The same in characters of ``text``, one for each of ``tokens`` where there are ids;
            empty ones where nothing of them is visible.
        masked: The trainer trains on none of these tokens, whoever says that they were given.
        known: They are a tool's or user's, whoever sent them: who builds the completion asked them
            itself. `Guard` has its ``environment`` for what a peer says.

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
        """A claim, neither masked nor known: ``{"tokens": [[2, 9]], "chars": [[10, 40]]}``.

        Raises:
            ValueError: as the constructor; or there is another key.
        """
        if not {"tokens", "chars"}.issuperset(data):
            raise ValueError("an object with tokens and chars alone")
        return cls(data.get("tokens", ()), data.get("chars", ()))

    def placed(self, tokens: int | None, chars: int) -> Given | None:
        """It in a completion; None where nothing of it is left.

        Args:
            tokens: How many it has; None without ids, where spans of tokens say nothing.
            chars: How many its text has.

        Raises:
            ValueError: spans lie beyond it, or are not as many of tokens as of characters.
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
    """The stretches around the spans, one more than there are of these; some may be empty."""
    around, start = [], 0
    for begin, end in spans:
        around.append((start, begin))
        start = end
    return [*around, (start, length)]


def stretches(spans: Iterable[Span], length: int) -> list[Span]:
    """Author's and given ones by turns, the author's first and last; some may be empty."""
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
