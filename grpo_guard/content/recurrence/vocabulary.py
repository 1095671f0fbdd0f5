"""How much a word reveals about its author: the bundled lists, for swarms of different models.

There are three classes. **Ordinary** words (how people reason, calculate, format and chat) reveal
nothing. **General** words are the rest of common English ("manageable", "decompose"), excluding
the subjects of word problems: a phrase containing one is as likely to be a habit as a slogan. All
other words, whether nonsense or real-world things ("glorp", "pizza"), should not appear in an
answer unless they appear in its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from functools import cache
from importlib.resources import files
from typing import Final

from grpo_guard.content.recurrence.words import END, words_of

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
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(word for line in lines for word in line.split())
