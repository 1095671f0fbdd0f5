"""Screen for words written in letters that look like Latin letters.

At temperature 1, a model sometimes glues tokens of two scripts together ("Edwardsа" with a Cyrillic
ending), so mixing alone proves nothing. A disguise is different: once its foreign letters are
replaced by Latin ones, it is a common word, or one that occurs elsewhere in the prompt or
completion. Long words in circled, wide or mathematical letters are not formulas and count as well.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from grpo_guard.content.screens.view import WORDS, Screen, View, shown
from grpo_guard.content.severity import REJECT
from grpo_guard.content.word_set import word_set
from grpo_guard.core.cached_property import cached_property
from grpo_guard.core.verdict import Finding

_FOREIGN = "\u0370-\u058f\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff"  # Greek to Armenian, and others
# Full-width, mathematical, circled, squared, parenthesised.
_STYLES = (
    "\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d6a3\u24b6-\u24e9\u249c-\u24b5\U0001f110-\U0001f129"
    "\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"
)
# Phonetic, raised, small-capital, turned, dotless; used to write pronunciations.
_PHONETIC = "\u01dd\u0131\u0237\u0250-\u02b8\u02e1-\u02e3\u1d00-\u1dbf\u2071\u207f\ua730\ua731"
_ODD = re.compile(f"[{_FOREIGN}{_STYLES}{_PHONETIC}\U0001f1e6-\U0001f1ff]")
_WORD = re.compile(f"[A-Za-z\u00c0-\u024f{_FOREIGN}{_STYLES}{_PHONETIC}]+")
_LATIN_WORD = re.compile(r"[a-z]{2,24}")
_STYLED = re.compile(f"[{_STYLES}]+")
_SCRIPT = re.compile(f"[{_FOREIGN}]")
# Formulas use Greek letters ("2nπr"), so count only those that look Latin, in longer words.
_GREEK = re.compile("[\u0370-\u03ff]")
_LIKE_LATIN = frozenset("ανοτυικρχγηΑΒΕΖΗΙΚΜΝΟΡΤΥΧ")
# What the letters of the Russian alphabet look like, if like any Latin letter. One that looks like
# another than it replaces ("Вoxel", which reads "Boxel") is a slip between two keyboards.
_LOOKS = {
    pair[0]: pair[1:]
    for pair in word_set(
        "аa бb вb гr д еe ёe ж з и[nu] й[nu] кk л мm нh оo пn рp сc т[tm] уy ф хx цu "
        "ч шw щw ъb ы ьb э ю яr"
    )
}
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Flags are pairs of regional indicators; an unpaired one spells something.
_REGIONAL = re.compile("[\U0001f1e6-\U0001f1ff]+")
_ASKED = re.compile(r"unicode|\bfonts?\b|fancy|letters|alphabet|phonetic|pronounc|homoglyph", re.I)
# "sinα" and "tanν" are formulas.
_FUNCTIONS = word_set("sin cos tan cot sec csc log ln lim max min exp mod det arcsin arccos arctan")
_PRONOUNCED = frozenset("/[.\u02c8\u02cc")
_LONGEST, _MOST_WORDS, _SEARCHES, _LONG_STYLED = 24, 20_000, 300, 7
_COMMON = WORDS["common"]


def homoglyphs(view: View) -> Iterator[Finding]:
    """Yield a finding for each disguised word; words entirely in another script are fine."""
    if not _ODD.search(view.others):
        return
    for match in _REGIONAL.finditer(view.text):
        if len(match[0]) % 2:
            yield Finding("homoglyph", "letters of flags, not in pairs", char_span=match.span())
    known = _KnownWords(view)
    for count, match in enumerate(_WORD.finditer(view.text)):
        word = match[0]
        if word.isascii() or len(word) > _LONGEST or count > _MOST_WORDS:
            continue
        before = view.text[max(match.start() - 1, 0) : match.start()]
        if _is_disguise(word, known, before) and not view.asked_for(word):
            if _ASKED.search(view.prompt):
                return
            message = f"a word of look-alike letters: {shown(word)}"
            yield Finding("homoglyph", message, char_span=match.span())


class _KnownWords:
    """Words that a disguise could imitate, collected from the prompt and the text on first use."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.searched: dict[str, bool] = {}

    @cached_property
    def cjk(self) -> bool:
        """Whether there are CJK characters, which often come with full-width Latin letters."""
        return bool(_CJK.search(self.view.text) or _CJK.search(self.view.prompt))

    @cached_property
    def words(self) -> frozenset[str]:
        near = f"{self.view.prompt[:50_000]} {self.view.lower[:50_000]}".lower()
        return _COMMON.union(word for word in re.findall(r"[a-z]{3,24}", near))

    @cached_property
    def lines(self) -> str:
        return "\n".join(self.words)

    def disguised(self, pattern: str) -> bool:
        """Whether a known word matches this pattern of letters and classes of them.

        Honest text does not mix scripts in hundreds of words. After `_SEARCHES` patterns, every
        word counts as disguised without a search.
        """
        if pattern not in self.searched:
            if len(self.searched) >= _SEARCHES:
                return True
            found = re.search(f"^{pattern}$", self.lines, re.MULTILINE)
            self.searched[pattern] = found is not None
        return self.searched[pattern]


def _is_disguise(word: str, known: _KnownWords, before: str) -> bool:
    folded = "".join(map(_latin, word))
    rest = "".join(char for char in word if char.isascii()).lower()
    if rest in _FUNCTIONS or folded in _FUNCTIONS or len(word) < 3:
        return False
    if "." in folded:
        greek = _GREEK.findall(word)
        if greek and (len(word) < 4 or not _LIKE_LATIN.issuperset(greek)):
            return False
        looks = [_LOOKS.get(char.lower(), _latin(char)) for char in word]
        # At least half of the word must be visible rather than guessed.
        guessed = 2 * folded.count(".") <= len(folded)
        return guessed and all(looks) and known.disguised("".join(looks))
    if not _LATIN_WORD.fullmatch(folded):
        return False
    if _STYLED.fullmatch(word):
        if known.cjk and "\uff21" <= word[0] <= "\uff5a":
            return False
        return len(word) >= _LONG_STYLED or folded in known.words
    # Text in turned letters is read from the end.
    return before not in _PRONOUNCED and (folded in known.words or folded[::-1] in _COMMON)


@lru_cache(maxsize=4096)
def _latin(char: str) -> str:
    """Return the lower-case Latin letter that a character looks like; "." for another script."""
    if char.isascii():
        return char.lower()
    if _SCRIPT.match(char):
        return "."
    last = unicodedata.name(char, "").rpartition(" ")[2]
    if last == "ALPHA":
        return "a"
    if len(last) == 1:
        return last.lower()
    plain = unicodedata.normalize("NFKC", char).strip("()").lower()
    return plain if plain.isascii() else char


SCREENS: Final = (Screen("homoglyph", REJECT, homoglyphs),)
