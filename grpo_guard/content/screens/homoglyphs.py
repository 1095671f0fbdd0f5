"""Words in which letters of another script stand for Latin ones, or the other way round.

A model at temperature 1 glues tokens of two scripts together now and then ("Edwardsа" with a
Cyrillic end), so mixing alone proves nothing. A disguise does: put the Latin letters back, and it
is a word that is known, or stands elsewhere in prompt or completion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo_guard.content.screens.view import View, shown, word_set
from grpo_guard.verdict import Finding

_LOOKS = {
    # Cyrillic
    **dict(zip("аеорсухіјѕһԁԛԝгкпмтнь", "aeopcyxijshdqwrknmthb", strict=True)),
    **dict(zip("АВЕКМНОРСТУХІЈЅҮԌԚԜЬ", "abekmhopctyxijsygqwb", strict=True)),
    # Greek
    **dict(zip("αοντυικρχγηω", "aovtuikpxynw", strict=True)),
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx", strict=True)),
    # Armenian, Cherokee, Lisu, Coptic
    **dict(zip("օսհոցզքԼՕՏ", "ouhngqplos", strict=True)),
    **dict(zip("ᎪᎬᎷᎻᏃᏚᏟᏢᏒᎢᏙᏴ", "aemhzscprtvb", strict=True)),
    **dict(zip("ꓐꓑꓒꓓꓔꓖꓗꓙꓚꓛꓜꓝꓞꓟꓠꓡ", "bpddtgkjcczffmnl", strict=True)),
    **dict(zip("ꓢꓣꓤꓥꓦꓧꓨꓩꓪꓫꓬꓭꓮꓯꓰꓱꓲꓳ", "srrvvhgjwxybaaeeio", strict=True)),
    **dict(zip("ⲟⲣⲥⲭ", "opcx", strict=True)),
    # Full-width and mathematical letters are folded by arithmetic, see `_folded`.
}  # fmt: skip
_TABLE = {ord(letter): latin for letter, latin in _LOOKS.items()}
_LATIN_LIKE = frozenset("aeopcyxijshqwABEKMHOPCTYXIJSrnmtgkbu")
_NOT_LATIN = "\u0370-\u03ff\u0400-\u052f\u0530-\u058f\u13a0-\u13ff\u2c80-\u2cff\ua4d0-\ua4ff"
_STYLED = "\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d7cb"
_MIXABLE = re.compile(f"[{_NOT_LATIN}{_STYLED}]")
_WORD = re.compile(f"[A-Za-z\u00c0-\u024f{_NOT_LATIN}{_STYLED}]+")
_LATIN_WORD = re.compile(r"[a-z]{3,24}")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
# "sinα" and "tanν" are formulas.
_FUNCTIONS = word_set("sin cos tan cot sec csc log ln lim max min exp mod det arcsin")
_LONGEST = 40
_MOST_WORDS = 2000
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
    known: set[str] | None = None
    for count, match in enumerate(_WORD.finditer(view.text)):
        word = match[0]
        if word.isascii() or count > _MOST_WORDS * 100:
            continue
        folded = _folded(word)
        if folded is None and not _disguised_russian(word):
            continue
        if folded is not None and folded not in _COMMON:
            if known is None:
                known = set(_LATIN_WORD.findall(f"{view.prompt[:50_000]} {view.lower[:50_000]}"))
            if folded not in known:
                continue
        if not view.asked_for(word):
            message = f"a word of look-alike letters: {shown(word)}"
            yield Finding("homoglyph", message, char_span=match.span())


def _folded(word: str) -> str | None:
    """The Latin word that a mixed one looks like, in lower case; None where it is not mixed."""
    if len(word) > _LONGEST or not _ASCII_LETTER.search(word):
        return None
    folded = "".join(_latin(char) for char in word).lower()
    if not _LATIN_WORD.fullmatch(folded):
        return None
    rest = "".join(_ASCII_LETTER.findall(word)).lower()
    return None if rest in _FUNCTIONS else folded


def _latin(char: str) -> str:
    code = ord(char)
    if 0xFF21 <= code <= 0xFF5A:
        return chr(code - 0xFEE0)
    if 0x1D400 <= code <= 0x1D6A3:  # mathematical alphabets of 26 capitals and 26 small letters
        place = (code - 0x1D400) % 52
        return chr(ord("a") + place % 26)
    return _TABLE.get(code, char)


def _disguised_russian(word: str) -> bool:
    """A Cyrillic word with Latin letters inside; at its ends they index a variable ("n-й")."""
    if len(word) > _LONGEST:
        return False
    latin = _ASCII_LETTER.findall(word)
    inside = _ASCII_LETTER.search(word[1:-1])
    others = [char for char in word if not char.isascii()]
    return (
        bool(latin and inside)
        and len(others) >= 3
        and all("\u0400" <= char <= "\u052f" for char in others)
        and any(ord(char) not in _TABLE for char in others)
        and all(char in _LATIN_LIKE for char in latin)
        # One glued piece is a sampler's accident; letters on both sides are a disguise.
        and not _ASCII_LETTER.match(word)
        and not _ASCII_LETTER.match(word[-1])
    )
