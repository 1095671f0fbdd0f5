"""Measure how much of a completion repeats earlier text or the question."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

# Shorter sequences of words recur in honest work ("so he has 5 + 3 ="). Sequences of this length,
# numbers included, recur only if a step is written twice.
NGRAM = 6
# Bounds memory: n-grams are stored, so a megabyte of text is judged by its beginning.
MAX_WORDS = 20_000
MAX_COMPRESSED = 200_000
_WORD = re.compile(r"[^\W_]+")
# Share of redundant words above which a text is padding, whatever its peers do. Among 1,320
# completions by two models and 3,000 GSM8K solutions, 0.5 % repeat at least 34 % of their words.
_REPEATED, _REPEATED_OR_ECHOED = 0.42, 0.7
# With fewer words, the shares are just noise.
_FEWEST_WORDS = 40
# If zlib, given the prompt, cannot compress a text to this share of its size, the text has too
# little redundancy of either kind.
_COMPRESSIBLE = 0.4
_FEWEST_BYTES = 400


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How redundant a text is, as shares of its words in [0, 1].

    Args:
        words: Number of words in the text.
        repeated: Share of words in sequences that occurred earlier in the text.
        echoed: Share of words in sequences from the prompt, not counting repeated ones.
        span: The longest redundant stretch, as [start, end) in characters; None if there is none.
    """

    words: int
    repeated: float
    echoed: float
    span: tuple[int, int] | None

    @property
    def blatant(self) -> bool:
        """Whether most of the text says nothing new."""
        either = self.repeated + self.echoed >= _REPEATED_OR_ECHOED
        return self.words >= _FEWEST_WORDS and (self.repeated >= _REPEATED or either)


def blatantly_redundant(text: str, prompt: str) -> Redundancy | None:
    """Return the redundancy of the text if most of the text is redundant, otherwise None."""
    if not _compressible(text, prompt):
        return None
    found = measure(text, prompt)
    return found if found.blatant else None


def measure(text: str, prompt: str) -> Redundancy:
    """Measure the redundancy of the text, in time linear in its first `MAX_WORDS` words."""
    found = list(islice(_WORD.finditer(text[: MAX_WORDS * 20]), MAX_WORDS))
    words = [match[0].lower() for match in found]
    asked = _WORD.findall(prompt[: MAX_WORDS * 10].lower())[:MAX_WORDS]
    known = set(_sequences(asked))
    repeated, echoed = [False] * len(words), [False] * len(words)
    seen = set[tuple[str, ...]]()
    for i, sequence in enumerate(_sequences(words)):
        if sequence in seen:
            repeated[i : i + NGRAM] = [True] * NGRAM
        elif sequence in known:
            echoed[i : i + NGRAM] = [True] * NGRAM
        seen.add(sequence)
    covered = [r or e for r, e in zip(repeated, echoed, strict=True)]
    total = max(len(words), 1)
    echoes = (sum(covered) - sum(repeated)) / total
    return Redundancy(len(words), sum(repeated) / total, echoes, _longest(covered, found))


def _sequences(words: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(NGRAM)), strict=False)


def _compressible(text: str, prompt: str) -> bool:
    data = text[:MAX_COMPRESSED].encode("utf-8", "replace")
    if len(data) < _FEWEST_BYTES:
        # zlib's headers alone would be a tenth of the text, and measuring it is cheap.
        return True
    asked = prompt[-MAX_COMPRESSED:].encode("utf-8", "replace")[-32_000:]
    packer = zlib.compressobj(1, zdict=asked) if asked else zlib.compressobj(1)
    return len(packer.compress(data) + packer.flush()) <= _COMPRESSIBLE * len(data)


def _longest(covered: list[bool], found: list[re.Match[str]]) -> tuple[int, int] | None:
    count = first = start = 0
    if True in covered:
        for i, hit in enumerate([*covered, False]):
            if not hit:
                if i - start > count:
                    count, first = i - start, start
                start = i + 1
    return (found[first].start(), found[first + count - 1].end()) if count else None
