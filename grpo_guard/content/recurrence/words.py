"""Split text into words: drop case, digits, punctuation and possessives, but keep sentence ends.

Numbers are dropped because they differ from one solution to the next, so a phrase made of digits
alone is not seen. Each symbol, such as an emoji, and each character of a script without spaces is a
word of its own. No regular expression here repeats more than one character class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

END: Final = "."
"""Marks the end of a sentence or line among the words."""

ANY: Final = "_"
"""Placeholder for a word that occurs in the prompt."""

_ENDS: Final = ".!?\n\r:;"
_ASCII: Final = {
    code: END if chr(code) in _ENDS else chr(code).lower() if chr(code).isalpha() else " "
    for code in range(128)
}
# Non-ASCII characters that English solutions contain. Once they are replaced, the text is ASCII and
# takes the faster path.
_TYPOGRAPHY: Final = "’‘“”–—−×÷•·…°€£½¼¾²³\u00a0"
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff"
_WORD: Final = re.compile(
    f"[{_UNSPACED}]|[^\\W\\d_{_UNSPACED}]+|[\u2600-\u27bf\U0001f000-\U0001faff]"
    r"|[.!?\n\r:;。！？]"
)
# A line break that a model wrote as two characters, but not LaTeX's \nu. If the n were read as a
# letter, "nFirst" would look like a word that only its author uses.
_ESCAPED: Final = re.compile(r"\\n(?=[A-Z0-9\s\\#*-]|$)")
_ALL_ENDS: Final = frozenset(_ENDS) | frozenset("。！？")


def words_of(text: str) -> list[str]:
    """The words in order and in lower case, with `END` after each sentence or line."""
    if "\\n" in text:
        text = _ESCAPED.sub("\n ", text)
    if not text.isascii():
        text = _plain(text)
    if text.isascii():
        return text.translate(_ASCII).replace(END, " . ").split()
    return [END if w in _ALL_ENDS else w for w in _WORD.findall(text.lower())]


def spans_of(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The words of `words_of` without `END`, each with its [start, end) in ``text``."""
    for match in _WORD.finditer(_plain(_ESCAPED.sub("\n ", text)).lower()):
        if match[0] not in _ALL_ENDS:
            yield match[0], match.span()


def _plain(text: str) -> str:
    """The text with typographic characters replaced by spaces; its length does not change."""
    for sign in _TYPOGRAPHY:
        text = text.replace(sign, " ")
    # The only letter whose lower case is two characters long; it would shift all later offsets.
    return text.replace("\u0130", "i")
