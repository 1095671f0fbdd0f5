"""Split text into words, dropping case, digits, punctuation and possessives but not sentence ends.

Numbers are dropped because they differ from one solution to the next; `sums` counts false sums.
Each symbol, such as an emoji, is a word of its own, and so is each character in a script without
spaces. Marks of reasoning formats are not words: ``<scratch_pad>``, ``<|channel|>``. No regular
expression here repeats more than one character class without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

END: Final = "."
"""The marker for the end of a sentence or line in a list of words."""

ANY: Final = "_"
"""The placeholder for a word that occurs in the prompt."""

_ENDS: Final = ".!?\n\r:;"
_ASCII: Final = {
    code: END if chr(code) in _ENDS else chr(code).lower() if chr(code).isalpha() else " "
    for code in range(128)
}
# Non-ASCII characters common in English solutions. Once they are replaced, the text is ASCII and
# takes the faster path.
_TYPOGRAPHY: Final = "’‘“”–—−×÷•·…°€£½¼¾²³\u00a0"
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff"
_WORD: Final = re.compile(
    f"[{_UNSPACED}]|[^\\W\\d_{_UNSPACED}]+|[\u2600-\u27bf\U0001f000-\U0001faff]"
    r"|[.!?\n\r:;。！？]"
)
# A line break that a model wrote as two characters, but not LaTeX's \nu. If the n were read as a
# letter, "nFirst" would look like a word used only by its author.
_ESCAPED: Final = re.compile(r"\\n(?=[A-Z0-9\s\\#*-]|$)")
# A tag or token of a reasoning format, with a name of several parts or between bars. If any part is
# not a known term, the name counts as words: "<hail_pad>".
_MARK: Final = re.compile(
    r"</?[A-Za-z]{1,20}(?:[_:-][A-Za-z]{1,20}){1,4}>"
    r"|<\|/?[A-Za-z]{1,20}(?:[_:-][A-Za-z]{1,20}){0,4}\|>"
)
_PART: Final = re.compile("[a-z]+")
_NAMED: Final = (
    "action analysis answer assistant begin block box budget call chain channel check code "
    "commentary conclusion constrain context critique draft end execution explanation final "
    "function functions id inner input internal json message model monologue note notes "
    "observation of output pad part plan problem process question reasoning reflect reflection "
    "response result results return review scratch scratchpad seed self solution start step steps "
    "summary system task text think thinking thought thoughts token tool tools turn user "
    "verification verify work"
)
_TERMS: Final = frozenset(_NAMED.split(" "))
# What is left of gpt-oss's channels if special tokens are dropped during decoding.
_GLUED: Final = re.compile(
    r"\A\s{0,8}analysis(?=[A-Z])|assistant(?:final|analysis|commentary)(?![a-z])"
)
_ALL_ENDS: Final = frozenset(_ENDS) | frozenset("。！？")


def words_of(text: str) -> list[str]:
    """Return the text's words in order and lower case, with `END` after each sentence or line."""
    text = _unmarked(text)
    if "\\n" in text:
        text = _ESCAPED.sub("\n ", text)
    if not text.isascii():
        text = _plain(text)
    if text.isascii():
        return text.translate(_ASCII).replace(END, " . ").split()
    return [END if w in _ALL_ENDS else w for w in _WORD.findall(text.lower())]


def spans_of(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the words from `words_of`, except `END`, each with its [start, end) in ``text``."""
    for match in _WORD.finditer(_plain(_ESCAPED.sub("\n ", _unmarked(text))).lower()):
        if match[0] not in _ALL_ENDS:
            yield match[0], match.span()


def _unmarked(text: str) -> str:
    """Replace the marks of reasoning formats with spaces; the length does not change."""
    if "<" in text and ">" in text:
        text = _MARK.sub(_blanked, text)
    if "analysis" in text or "assistant" in text:
        text = _GLUED.sub(lambda match: " " * len(match[0]), text)
    return text


def _blanked(mark: re.Match[str]) -> str:
    known = _TERMS.issuperset(_PART.findall(mark[0].lower()))
    return " " * len(mark[0]) if known else mark[0]


def _plain(text: str) -> str:
    """Replace typographic characters with spaces; the length does not change."""
    for sign in _TYPOGRAPHY:
        text = text.replace(sign, " ")
    # The only letter whose lower case is two characters long, which would shift all later offsets.
    return text.replace("\u0130", "i")
