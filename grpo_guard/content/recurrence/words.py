"""Split text into words, dropping case, digits, punctuation and possessives but not sentence ends.

Numbers are dropped because they differ from one solution to the next; `sums` counts false sums.
Each symbol, such as an emoji, is a word of its own, and so is each character in a script without
spaces. Marks of reasoning formats are not words: ``<scratch_pad>``, ``<|channel|>``. No regular
expression here repeats more than one character class without a bound.

If models differ, bundled lists say how much a word reveals about its author. There are three
classes. **Ordinary** words (how people reason, calculate, format and chat) reveal nothing.
**General** words are the rest of common English ("manageable", "decompose"), excluding the subjects
of word problems: a phrase containing one is as likely to be a habit as a slogan. All other words,
whether nonsense or real-world things ("glorp", "pizza"), should not appear in an answer unless they
appear in its prompt.
"""

import re
import string
from collections.abc import Iterable, Iterator, Set
from functools import cache
from importlib.resources import files
from typing import Final

from grpo_guard.content.word_set import word_set

END: Final = "."
"""The marker for the end of a sentence or line in a list of words."""

ANY: Final = "_"
"""The placeholder for a word that occurs in the prompt."""

_ENDS: Final = ".!?\n\r:;"
_ASCII: Final = (
    dict.fromkeys(range(128), " ")
    | {ord(c): c.lower() for c in string.ascii_letters}
    | dict.fromkeys(map(ord, _ENDS), END)
)
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
_TERMS: Final = word_set(
    "action analysis answer assistant begin block box budget call chain channel check code "
    "commentary conclusion constrain context critique draft end execution explanation final "
    "function functions id inner input internal json message model monologue note notes "
    "observation of output pad part plan problem process question reasoning reflect reflection "
    "response result results return review scratch scratchpad seed self solution start step steps "
    "summary system task text think thinking thought thoughts token tool tools turn user "
    "verification verify work"
)
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


# Adverbs and abstract nouns that describe how the work is done, as habits do: "methodically".
_ABSTRACT: Final = (
    "ly", "ing", "tion", "sion", "ment", "able", "ible", "ness", "ance", "ence", "ize", "ise",
    "ized", "ised", "izing", "ising", "ively", "ful",
)  # fmt: skip
SHORT: Final = 2
"""Maximum length, in letters, of a word that could be a symbol or a variable name."""
_LONG: Final = 7
_ENDINGS: Final = (
    ("ies", ("y",)), ("es", ("", "e")), ("s", ("",)), ("ed", ("", "e")), ("ing", ("", "e")),
    ("er", ("", "e")), ("ly", ("",)),
)  # fmt: skip
_SHORTEST_STEM: Final = 3


@cache
def ordinary_words() -> frozenset[str]:
    """Return the words of grammar, reasoning, calculation, formatting and chat, plus the Chinese
    characters that are frequent or common in mathematics, and the habits of published models."""
    lists = ("ordinary.txt", "ordinary_zh.txt", "habits.txt")
    return frozenset({END}).union(*map(_listed, lists))


def declared_words(words: Iterable[str]) -> frozenset[str]:
    """Return the words of an operator's own list, whose entries may be whole phrases.

    Raises:
        ValueError: an entry is not text, such as YAML's ``no``.
    """
    found = set[str]()
    for one in (words,) if isinstance(words, str) else words:
        if not isinstance(one, str):
            raise ValueError(
                f"RecurrenceVerifier.ordinary: expected a list of words, got {one!r:.80}"
            )
        found.update(words_of(one))
    return frozenset(found - {END})


def strangeness(word: str, ordinary: Set[str]) -> float:
    """Return 1 for a word on no list, 0.5 for a general or very short word, 0 for an ordinary word.

    Symbols and words of one or two letters get only 0.5 because chat models like emoji and programs
    use short names. An inflected form counts as its stem, and a word describing how work is done
    ("methodically") counts as ordinary.
    """
    stems = tuple(_stems(word))
    if any(stem in ordinary for stem in stems) or (len(word) >= _LONG and word.endswith(_ABSTRACT)):
        return 0.0
    general = _general_words()
    return 0.5 if len(word) <= SHORT or any(stem in general for stem in stems) else 1.0


@cache
def _general_words() -> frozenset[str]:
    return _listed("general.txt")


def _stems(word: str) -> Iterator[str]:
    yield word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            for last in instead:
                yield word[: -len(ending)] + last


def _listed(name: str) -> frozenset[str]:
    return frozenset(word for line in lines_of(name) for word in line.split())


def lines_of(name: str) -> list[str]:
    """Return the lines of a bundled list, without its comments."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]
