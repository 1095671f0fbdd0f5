"""Share the false-positive budget among a completion's tokens.

The test on token t is valid at a level fixed before the token is drawn, and the levels of all
tokens that could ever occur must add up to the budget. Three things follow:

* The completion's length must not matter. It is chosen by the sampler and by the attacker: if each
  token got budget / length, attackers could dilute every token's share by padding, and honest work
  would suffer when a rare token ends a completion early (the union bound covers all positions that
  a completion *could* reach).
* If a maximum length is declared, every position gets an equal share. Otherwise the shares decrease
  with position and add up to one over all positions: see `falling_shares`.
* A position that calls for a number can get a larger share, but only the text *before* it may
  decide that. If the token itself did, it would be used twice, and the bound would not hold.
"""

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from grpo_guard.logprob.stats import Floats

# Share of the budget given to number and answer positions on top of their general share.
NUMBER_SHARE = ANSWER_SHARE = 0.25
FIRST_BLOCK = 64
CONTEXT = 64  # number of characters before a token that determine its place

_NUMBER = re.compile(
    r"""(?: \d[.,]? | [=≈$€£¥#] | [\d)}\]%]\s*[-+*/^×÷·] | \\(?:times|cdot|div|frac\{) )
        \s*\Z""",
    re.VERBOSE,
)
_ANSWER = re.compile(
    r"""(?: \#\#\#\# | \\boxed\{ | answer\s*(?:is|:|=) | <answer> )
        [\s:$*]* [^\s<}]* \Z""",  # up to the end of the first word
    re.VERBOSE | re.IGNORECASE,
)


class Place(IntEnum):
    """The kind of token called for by the text before it."""

    ELSEWHERE = 0
    NUMBER = 1
    ANSWER = 2


class Places:
    """Uses a transformers tokenizer to find the text before each token, decoded one by one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._pieces: dict[int, str] = {}  # at most one entry per token in the vocabulary

    def __call__(self, ids: Sequence[int]) -> list[Place]:
        """Return the `Place` of each of a completion's tokens, [n] -> [n]."""
        return [place_after(before) for before in self.before(ids, CONTEXT)]

    def before(self, ids: Sequence[int], context: int, *, start: str = "") -> Iterator[str]:
        """Yield the end of the text before each token, at most ``context`` characters; ``start`` is
        the text before the first token."""
        text = start
        for token in ids:
            yield text
            text = (text + self.piece(token))[-context:]

    def piece(self, token: int) -> str:
        """Return the text of a single token."""
        if token not in self._pieces:
            self._pieces[token] = self.tokenizer.decode(
                [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return self._pieces[token]


def place_after(text: str) -> Place:
    """Return the `Place` of the token after ``text``.

    >>> place_after("so 3 + 4 ="), place_after("The answer is"), place_after("Tom has")
    (<Place.NUMBER: 1>, <Place.ANSWER: 2>, <Place.ELSEWHERE: 0>)
    """
    if _ANSWER.search(text):
        return Place.ANSWER
    return Place.NUMBER if _NUMBER.search(text) else Place.ELSEWHERE


def shares_of(
    places: Sequence[Place], longest: int | None, *, numbers: int, answers: int
) -> Floats:
    """Return each token's share of the budget, shape [n]; all that could occur add up to at most 1.

    The first ``numbers`` number positions get an equal part of `NUMBER_SHARE` on top of their
    general share, and the first ``answers`` answer positions an equal part of `ANSWER_SHARE`.
    Answer positions beyond that count as number positions; number positions beyond that get only
    their general share. ``longest`` is the declared maximum length in tokens, if there is one.
    """
    left = {Place.NUMBER: numbers, Place.ANSWER: answers}
    extra = {Place.NUMBER: NUMBER_SHARE, Place.ANSWER: ANSWER_SHARE}
    for place in left:
        if longest is not None:
            left[place] = min(left[place], longest)
        extra[place] = extra[place] / left[place] if left[place] else 0.0
    general = 1.0 - NUMBER_SHARE * (numbers > 0) - ANSWER_SHARE * (answers > 0)
    n = len(places)
    if longest is None:
        shares = general * falling_shares(n)
    else:
        shares = np.where(np.arange(n) < longest, general / longest, 0.0)
    for t, place in enumerate(places):
        if place is Place.ANSWER and not left[place]:
            place = Place.NUMBER
        if place is not Place.ELSEWHERE and left[place]:
            left[place] -= 1
            shares[t] += extra[place]
    return shares


def falling_shares(n: int) -> Floats:
    """Return the first n of a series of shares that add up to 1 over all positions, shape [n].

    Blocks of 64, 128, 256 ... positions get 1/2, 1/6, 1/12 ... = 1/((j+1)(j+2)) of the budget,
    divided equally within the block: 1/128 per position at first, 1/3072 around position 256. A
    declared length of 512 would give 1/512 everywhere, so it pays to declare the length.
    """
    block = np.floor(np.log2(np.arange(n) / FIRST_BLOCK + 1)).astype(int)
    shares: Floats = 1.0 / ((block + 1.0) * (block + 2.0) * FIRST_BLOCK * 2.0**block)
    return shares
