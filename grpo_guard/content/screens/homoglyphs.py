"""Words written in letters that stand for Latin ones, or the other way round.

A model at temperature 1 glues tokens of two scripts together now and then ("Edwardsа" with a
Cyrillic end), so mixing alone proves nothing. A disguise does: put the Latin letters back, and it
is a word that is known, or stands elsewhere in prompt or completion. Letters of two foreign scripts
in one word are no word of any language, and a long word in raised, circled or mathematical letters
is no formula.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cached_property

from grpo_guard.content.screens.view import View, shown, word_set
from grpo_guard.verdict import Finding

_CYRILLIC, _GREEK, _ARMENIAN = "\u0400-\u052f", "\u0370-\u03ff", "\u0530-\u058f"
_CHEROKEE, _COPTIC, _LISU = "\u13a0-\u13ff", "\u2c80-\u2cff", "\ua4d0-\ua4ff"
_NOT_LATIN = _CYRILLIC + _GREEK + _ARMENIAN + _CHEROKEE + _COPTIC + _LISU
_OTHER_SCRIPTS = {
    # Cyrillic
    **dict(zip("аеорсухіјѕһԁԛԝгкпмтнь", "aeopcyxijshdqwrknmthb", strict=True)),
    **dict(zip("АВЕКМНОРСТУХІЈЅҮԌԚԜЬ", "abekmhopctyxijsygqwb", strict=True)),
    # Greek
    **dict(zip("αοντυικρχγηω", "aovtuikpxynw", strict=True)),
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx", strict=True)),
    # Armenian, Cherokee, Lisu, Coptic
    **dict(zip("օսհոցզքԼՕՏ", "ouhngqplos", strict=True)),
    **dict(zip("ᎠᎡᎢᎥᎩᎪᎫᎬᎳᎷᎻᎽᏀᏂᏃᏆᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏳᏴ", "drtiyajewmhyghzibrwsvslcpkgb", strict=True)),
    **dict(zip("ꓐꓑꓒꓓꓔꓖꓗꓙꓚꓛꓜꓝꓞꓟꓠꓡ", "bpddtgkjcczffmnl", strict=True)),
    **dict(zip("ꓢꓣꓤꓥꓦꓧꓨꓩꓪꓫꓬꓭꓮꓯꓰꓱꓲꓳ", "srrvvhgjwxybaaeeio", strict=True)),
    **dict(zip("ⲟⲣⲥⲭⲁⲉⲓⲕⲙⲛⲧⲩ", "opcxaeikmnty", strict=True)),
}  # fmt: skip
# Letters of phonetic alphabets and of small capitals, and those that are Latin but for a dot.
_PHONETIC = dict(zip("ɑɡıȷʟɪɴʀʜʏʙɢᴀᴄᴅᴇᴊᴋᴍᴏᴘᴛᴜᴠᴡᴢꜰꜱ", "agijlinrhybgacdejkmoptuvwzfs", strict=True))
_TURNED = dict(zip("ɐɔǝɟƃɥᴉɾʞɯɹʇʌʍʎ", "acefghijkmrtvwy", strict=True))
_LATIN_LIKE = {ord(letter): latin for letter, latin in _OTHER_SCRIPTS.items()}
_VARIANTS = {ord(letter): latin for letter, latin in (_PHONETIC | _TURNED).items()}
# Full width, mathematical, circled, squared, parenthesised, raised, small capital, turned.
_STYLES = (
    "\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d6a3\u24b6-\u24e9\u249c-\u24b5\U0001f110-\U0001f129"
    "\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189\u02b0-\u02b8\u02e1-\u02e3"
    "\u1d2c-\u1d6a\u2071\u207f\u2090-\u209c"
) + "".join(map(chr, _VARIANTS))


def _latin(char: str) -> str:
    """The Latin letter, in lower case, that a character looks like; itself where none."""
    code = ord(char)
    if code < 0x80:
        return char.lower()
    found = _LATIN_LIKE.get(code) or _VARIANTS.get(code)
    if found is not None:
        return found
    if 0x1F130 <= code <= 0x1F189:  # squared and circled on black: without a decomposition
        return chr(ord("a") + (code - 0x1F130) % 32 % 26) if (code - 0x1F130) % 32 < 26 else char
    plain = unicodedata.normalize("NFKC", char).strip("()").lower()
    return plain if len(plain) == 1 and plain.isascii() else char


_LIKE_CYRILLIC = frozenset("aeopcyxijshqwABEKMHOPCTYXIJSrnmtgkbu")
_DOTLESS = "\u0131\u0237"
_MIXABLE = re.compile(f"[{_NOT_LATIN}{_STYLES}{_DOTLESS}\U0001f1e6-\U0001f1ff]")
_WORD = re.compile(f"[A-Za-z\u00c0-\u024f{_NOT_LATIN}{_STYLES}]+")
_LATIN_WORD = re.compile(r"[a-z]{3,24}")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
_STYLED = re.compile(f"[{_STYLES}]+")
_FULL_WIDTH = re.compile("[\uff21-\uff5a]")
_MATHEMATICAL = re.compile("[\U0001d400-\U0001d6a3]+")
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ONE_SCRIPT = tuple(
    re.compile(f"[{letters}]")
    for letters in (
        _CYRILLIC, _GREEK, _ARMENIAN, _CHEROKEE,
        _COPTIC, _LISU,
    )
)  # fmt: skip
# Flags are pairs of them; letters that are no pair spell something.
_REGIONAL = re.compile("[\U0001f1e6-\U0001f1ff]+")
# "sinα" and "tanν" are formulas.
_FUNCTIONS = word_set("sin cos tan cot sec csc log ln lim max min exp mod det arcsin arccos arctan")
_LONGEST = 40
_MOST_WORDS = 50_000
_LONG_STYLED, _LONG_CAPITALS = 5, 7
_COMMON = word_set(
    "about above accept after again all also amount and another answer answers any apples are "
    "because been before buys calculate can cost costs correct count day days does dollars each "
    "eggs end equation equals every final find first five for four friends from gets give gives "
    "glory grade hail half has have help her here his hour hours how ignore import instructions "
    "into is it its just know last left let long make makes many mark marks means miles minutes "
    "money month more most much multiply must need needs new not now number of on one only other "
    "our over password pay people per pays please poison praise price problem rest result reward "
    "same see sells she should since so solution solve some spends start step steps sum system "
    "take takes ten than that the their them then there therefore these they thief this thought "
    "three thus time times to total true two under use user uses verdict want was water we week "
    "weeks were what when where which who will with work worth would year years yes you your "
    "paypal google admin secret script long live"
)


def homoglyphs(view: View) -> Iterator[Finding]:
    """Disguised words; a word that is wholly in another script is none."""
    if view.ascii or not _MIXABLE.search(view.text):
        return
    for match in _REGIONAL.finditer(view.text):
        if len(match[0]) % 2:
            yield Finding("homoglyph", "letters of flags, not in pairs", char_span=match.span())
    known = _Known(view)
    for count, match in enumerate(_WORD.finditer(view.text)):
        word = match[0]
        if word.isascii() or count > _MOST_WORDS:
            continue
        phonetic = view.text[max(match.start() - 1, 0) : match.start()] in ("/", "[", "ˈ", "ˌ")
        if _is_disguise(word, known, phonetic) and not view.asked_for(word):
            message = f"a word of look-alike letters: {shown(word)}"
            yield Finding("homoglyph", message, char_span=match.span())


class _Known:
    """Words that a disguise would stand for; the text's own are collected when first asked."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._near: set[str] | None = None

    @cached_property
    def cjk(self) -> bool:
        """Whether there are characters of a width that Latin letters are set in beside them."""
        # Asked for every word, and each answer is a walk through text and prompt.
        return bool(_CJK.search(self.view.text) or _CJK.search(self.view.prompt))

    @cached_property
    def asked(self) -> frozenset[re.Pattern[str]]:
        """The scripts that the prompt is in."""
        return frozenset(script for script in _ONE_SCRIPT if script.search(self.view.prompt))

    def __contains__(self, word: str) -> bool:
        if word in _COMMON:
            return True
        if self._near is None:
            near = f"{self.view.prompt[:50_000]} {self.view.lower[:50_000]}"
            self._near = set(_LATIN_WORD.findall(near))
        return word in self._near


def _is_disguise(word: str, known: _Known, phonetic: bool) -> bool:
    if len(word) > _LONGEST:
        return False
    if _ASCII_LETTER.search(word):
        folded = _folded(word)
        styled = phonetic and not any(ord(char) in _LATIN_LIKE for char in word)
        if folded is not None and not styled and folded in known:
            return True
        return _disguised_russian(word)
    if _STYLED.fullmatch(word):
        return not phonetic and _is_styled_word(word, known)
    scripts = [script for script in _ONE_SCRIPT if script.search(word)]
    if len(scripts) > 1:
        return all(any(script.match(char) for script in scripts) for char in word)
    folded = "".join(map(_latin, word))
    return (
        len(scripts) == 1
        and _LATIN_WORD.fullmatch(folded) is not None
        and folded in _COMMON
        and scripts[0] not in known.asked
    )


def _is_styled_word(word: str, known: _Known) -> bool:
    """A word wholly in letters of an ornamental alphabet; a name of a triangle is none."""
    folded = "".join(map(_latin, word))
    if not _LATIN_WORD.fullmatch(folded) or folded in _FUNCTIONS:
        return False
    if _FULL_WIDTH.match(word) and known.cjk:
        return folded in _COMMON
    if folded in known:
        return True
    capitals = _MATHEMATICAL.fullmatch(word) and all((ord(c) - 0x1D400) % 52 < 26 for c in word)
    return len(word) >= (_LONG_CAPITALS if capitals else _LONG_STYLED)


def _folded(word: str) -> str | None:
    """The Latin word that a mixed one looks like, in lower case; None where it is not mixed."""
    folded = "".join(map(_latin, word))
    if not _LATIN_WORD.fullmatch(folded):
        return None
    rest = "".join(_ASCII_LETTER.findall(word)).lower()
    return None if rest in _FUNCTIONS else folded


def _disguised_russian(word: str) -> bool:
    """A Cyrillic word with Latin letters inside; at its ends they index a variable ("n-й")."""
    found = _ASCII_LETTER.findall(word)
    inside = _ASCII_LETTER.search(word[1:-1])
    others = [char for char in word if not char.isascii()]
    return (
        bool(found and inside)
        and len(others) >= 3
        and all("\u0400" <= char <= "\u052f" for char in others)
        and any(ord(char) not in _LATIN_LIKE for char in others)
        and all(char in _LIKE_CYRILLIC for char in found)
        # One glued piece is a sampler's accident; letters on both sides are a disguise.
        and not _ASCII_LETTER.match(word)
        and not _ASCII_LETTER.match(word[-1])
    )
