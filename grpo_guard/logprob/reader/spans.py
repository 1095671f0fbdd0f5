"""Spans of text for a reader to judge: sentences, and a random choice among them."""

import math
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Span, between

# Longest sentence in UTF-8 bytes, and so in tokens of any tokenizer; longer ones are cut.
MOST_BYTES: Final = 200
# A sentence ends at a terminator. Text without terminators is cut at a length few sentences exceed,
# at the last blank before it, so that a reader sees all of it. Backtracking is bounded.
_PIECE: Final = re.compile(
    rf"[^\n.!?。！？]{{1,{MOST_BYTES}}}(?:[.!?。！？]{{1,4}}|(?=\n|\Z)|(?<=\s))"
    rf"|[^\n.!?。！？]{{1,{MOST_BYTES}}}"
)
_FEWEST_LETTERS: Final = 10
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# One ideograph or symbol carries about as much information as two letters.
_LETTERS_OF_SIGN: Final = 2
# Words, as opposed to variables and LaTeX commands.
_WORD: Final = re.compile(rf"(?<![\\a-zA-Z])[^\W\d_]{{3,}}|{_CJK.pattern}")
_COMMAND: Final = re.compile(r"\\[a-zA-Z]+")
# Without a word, this many letters make a message; formulas between sentences rarely have as many.
_FEWEST_WITHOUT_WORD: Final = 4
SYMBOL: Final = (
    # Circled letters, and miscellaneous symbols except stars, ballot boxes, check marks and arrows.
    "\u249c-\u24e9\u2600-\u2604\u2607-\u260f\u2613-\u2704\u2706-\u2712\u2719-\u274b\u274d\u274f-\u2775"
    # Braille, then pictures.
    "\u2801-\u28ff\U0001f000-\U0001faff"
)
"""Regex character class of symbols that can carry a message, as emoji do. Mathematical signs,
arrows, bullets, marks, boxes and punctuation from other scripts are excluded."""
_SYMBOL: Final = re.compile(f"[{SYMBOL}]")
_T = TypeVar("_T")
_SAYS_NOTHING: Final = re.compile(rf"(?:(?![{SYMBOL}])[\W_])+")
# No author can predict these choices and place text where it will go unread.
_LOTS: Final = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The span ``text[start:end]`` of a completion, with its context."""

    prompt: str  # empty if the prompt is not trusted
    text: str  # the completion
    start: int
    end: int
    node: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= len(self.text):
            raise ValueError(
                f"TextSpan: expected 0 <= start < end <= {len(self.text)}, got "
                f"[{self.start}, {self.end})"
            )


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each sentence of ``text`` with about ten letters or more, in order.

    Shorter sentences are joined to the text that follows, so that a message cannot be hidden by
    splitting it into pieces, however small. Symbols such as emoji count as letters, and a LaTeX
    command counts as one letter. Formulas, numbers and markup between sentences are skipped: they
    reveal little about their author, and any reader finds them hard to predict.

    Examples:
        >>> list(sentences("12 + 3 = 15. All hail to the thief. Ok."))
        [(12, 35)]
        >>> list(sentences("All hail. 15. Bob."))
        [(0, 18)]
    """
    for start, end in _joined(text):
        size = len(text[start:end].encode("utf-8", "replace"))
        step = math.ceil((end - start) / math.ceil(size / MOST_BYTES))
        yield from ((at, min(at + step, end)) for at in range(start, end, step))


def _joined(text: str) -> Iterator[tuple[int, int]]:
    held: int | None = None
    letters = end = 0
    worded = False
    for match in _PIECE.finditer(text):
        piece, word = match[0], _WORD.search(match[0]) is not None
        if held is not None and (
            match.end() - held > MOST_BYTES or (word and _formula(worded, letters))
        ):
            if not _formula(worded, letters):
                yield held, end
            held, letters, worded = None, 0, False
        own = _letters(piece)
        if own < _FEWEST_LETTERS and not word:
            own = _letters(_COMMAND.sub("x", piece))
        if not own:
            continue
        held, end = match.start() if held is None else held, match.end()
        letters += own
        worded |= word
        if letters >= _FEWEST_LETTERS:
            yield held, end
            held, letters, worded = None, 0, False
    if held is not None and not _formula(worded, letters):
        yield held, end


def _formula(worded: bool, letters: int) -> bool:
    """Whether pieces of text have no word and too few letters to say anything."""
    return not worded and letters < _FEWEST_WITHOUT_WORD


def _letters(piece: str) -> int:
    ideographs, symbols = len(_CJK.findall(piece)), len(_SYMBOL.findall(piece))
    plain = sum(map(str.isalpha, piece)) - ideographs
    return plain + _LETTERS_OF_SIGN * (ideographs + symbols)


def happens(share: float) -> bool:
    """Return True with probability ``share``."""
    return _LOTS.random() < share


def drawn(items: Iterable[_T], most: int | None = None) -> list[_T]:
    """Draw up to ``most`` items (None for all) with equal probability, in random order. No more are
    held in memory, because authors control how many there are."""
    chosen = list[_T]()
    for seen, item in enumerate(items):
        if most is None or seen < most:
            chosen.append(item)
        elif (place := _LOTS.randrange(seen + 1)) < most:
            chosen[place] = item
    _LOTS.shuffle(chosen)
    return chosen


def own_sentences(completion: Completion) -> Iterator[Span]:
    """Yield [start, end) of each sentence written by the completion's author, in order.

    Text that verifiably came from a tool or user is skipped, because it cannot be the author's
    poison. Only the first of several identical sentences is returned: it explains its copies, and
    an author could otherwise send copies to make other sentences unlikely to be drawn.
    """
    verified, text = completion.verified_spans, completion.text
    seen = set[int]()
    for begin, end in between(verified.chars if verified else (), len(text)):
        turn = text[begin:end]
        for first, last in sentences(turn):
            wording = hash(_SAYS_NOTHING.sub("", turn[first:last].casefold()))
            if wording not in seen:
                seen.add(wording)
                yield begin + first, begin + last
