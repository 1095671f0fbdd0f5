"""Text to words: case, digits, punctuation and possessives put away, sentence ends kept.

Numbers are dropped, since a solution's own differ from prompt to prompt; so a phrase made of digits
alone is not seen. Symbols such as emoji and each character of a script without spaces are words of
their own. No regular expression here repeats more than one class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
_UNSPACED_ONLY: Final = re.compile(f"[{_UNSPACED}]")
_WORD: Final = re.compile(
    f"[{_UNSPACED}]|[^\\W\\d_{_UNSPACED}]+|[\u2600-\u27bf\U0001f000-\U0001faff]"
    r"|[.!?\n\r:;。！？]"
)
_ALL_ENDS: Final = frozenset(_ENDS) | frozenset("。！？")


def words_of(text: str) -> list[str]:
    """The words in order, in lower case, with `END` where a sentence or line ends."""
    if not text.isascii():
        for sign in _TYPOGRAPHY:
            text = text.replace(sign, " ")
    if text.isascii():
        return text.translate(_ASCII).replace(END, " . ").split()
    return [END if w in _ALL_ENDS else w for w in _WORD.findall(text.lower())]


def pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    """Finds words as `words_of` separates them, in order, in the original text.

    `ANY` stands for any word. Letters and what may stand between words are disjoint classes, so a
    match is never ambiguous.
    """
    body = ""
    before = ""
    for word in words:
        if word == END:
            continue
        # Characters of an unspaced script and symbols need nothing between them.
        joined = not before or (_spaced(before) and _spaced(word))
        body += ("" if not before else rf"[\W\d_]{{{int(joined)},40}}?") + (
            r"[^\W\d_]{1,40}" if word == ANY else re.escape(word)
        )
        before = word
    return re.compile(rf"(?<![^\W\d_]){body}(?![^\W\d_])" if _spaced(before) else body, re.I)


def _spaced(word: str) -> bool:
    return (word[-1].isalpha() and not _UNSPACED_ONLY.match(word[-1])) or word == ANY
