"""Text to words: case, digits, punctuation and possessives put away, sentence ends kept.

Numbers are dropped, since a solution's own differ from prompt to prompt; so a phrase made of digits
alone is not seen. Symbols such as emoji and each character of a script without spaces are words of
their own. No regular expression here repeats more than one class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

END: Final = "."
"""Stands among the words for the end of a sentence or line."""

ANY: Final = "_"
"""Stands for a word that the prompt gave."""

_ENDS: Final = ".!?\n\r:;"
_ASCII: Final = {
    code: END if chr(code) in _ENDS else chr(code).lower() if chr(code).isalpha() else " "
    for code in range(128)
}
# What English solutions hold beside ASCII. Without these they can take the faster way.
_TYPOGRAPHY: Final = "’‘“”–—−×÷•·…°€£½¼¾²³\u00a0"
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff"
_WORD: Final = re.compile(
    f"[{_UNSPACED}]|[^\\W\\d_{_UNSPACED}]+|[\u2600-\u27bf\U0001f000-\U0001faff]"
    r"|[.!?\n\r:;。！？]"
)
# A line break that a model wrote as two characters, not LaTeX's \nu: read as a letter, the n made
# "nFirst" a word that only its author uses.
_ESCAPED: Final = re.compile(r"\\n(?=[A-Z0-9\s\\#*-]|$)")
_ALL_ENDS: Final = frozenset(_ENDS) | frozenset("。！？")


def words_of(text: str) -> list[str]:
    """The words in order, in lower case, with `END` where a sentence or line ends."""
    if "\\n" in text:
        text = _ESCAPED.sub("\n ", text)
    if not text.isascii():
        text = _plain(text)
    if text.isascii():
        return text.translate(_ASCII).replace(END, " . ").split()
    return [END if w in _ALL_ENDS else w for w in _WORD.findall(text.lower())]


def spans_of(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The words of `words_of` without the ends, each with its [start, end) in ``text``."""
    for match in _WORD.finditer(_plain(_ESCAPED.sub("\n ", text)).lower()):
        if match[0] not in _ALL_ENDS:
            yield match[0], match.span()


def _plain(text: str) -> str:
    """The text with no typography, character for character."""
    for sign in _TYPOGRAPHY:
        text = text.replace(sign, " ")
    # The one letter that is two in lower case, after which nothing would stand where it stood.
    return text.replace("\u0130", "i")
