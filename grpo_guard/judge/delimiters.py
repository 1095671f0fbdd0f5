"""Neutralise untrusted text, so that nothing in it works as a delimiter or chat-template token.

A server that tokenises ``<|im_start|>`` inside a message as the special token would let a
completion end its message. Some tokenizers fold look-alikes to ASCII first (NFKC), and to a model
``</сompletion>`` with a Cyrillic letter reads like our tag, as do tags with invisible characters
inside. All of these are found here, and their brackets are replaced by harmless ones. Each bracket
is replaced by a single character, so that offsets stay valid.

New templates bring new tokens, so no list of tokens is ever complete. Anything that looks like a
token is treated as one: any name in angle brackets, and any name in square brackets that has three
capitals in a row, or an underscore or a digit after three letters. Honest text only loses the shape
of its brackets. Three tags in which tasks ask for answers are kept.
"""

import re
import unicodedata
from itertools import chain

_TAGS = ("completion", "task", "reference")
_LEFT_ALONE = "think|answer|code"
# Blocks of letters that NFKC folds to ASCII: fonts, full width, circles, Roman numerals, sub- and
# superscripts, and accented letters.
_STYLED = chain(
    range(0xAA, 0x2E5), range(0x1E00, 0x1F00), range(0x2160, 0x2180), range(0x2C7C, 0x2C7E),
    range(0xA7F2, 0xA7F5), range(0x1D2C, 0x1DC0), range(0x2070, 0x20A0), range(0x2100, 0x2150),
    range(0x24B6, 0x24EA), range(0x1D400, 0x1D6A8), range(0x1F110, 0x1F18A), range(0xFF21, 0xFF5B),
)  # fmt: skip
# Characters that only look like an ASCII letter.
_HOMOGLYPHS = {
    "a": "аɑα", "c": "сϲᴄ", "e": "еҽ", "f": "ƒ", "i": "іıɪӏ", "k": "кκ", "l": "ӏ1ǀi|", "m": "мᴍ",
    "n": "ոпɴ", "o": "оοօ0ᴏ", "p": "рρ", "r": "гʀ", "s": "ѕꜱ", "t": "тτᴛ",
}  # fmt: skip
# Invisible characters: default ignorables and combining marks.
_HIDDEN = (
    r"\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff"
)
_LOOK_ALIKE = str.maketrans(
    {"<": "‹", "＜": "‹", "﹤": "‹", ">": "›", "＞": "›", "﹥": "›"}
    | {"[": "⟦", "［": "⟦", "﹇": "⟦", "]": "⟧", "］": "⟧", "﹈": "⟧"}
)
_READ_BACK = str.maketrans({"‹": "<", "›": ">", "⟦": "[", "⟧": "]"})


def neutralised(text: str) -> str:
    """Return untrusted text without working delimiters or chat-template tokens.

    The length stays the same, and the time is linear. Lone surrogates, which no JSON body can hold,
    become question marks.
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    pattern = _ASCII if text.isascii() else _ANY
    return pattern.sub(lambda match: match[0].translate(_LOOK_ALIKE), text)


def read_back(text: str) -> str:
    """Undo the replacement of brackets, to find a judge's quotation in the original text."""
    return text.translate(_READ_BACK)


def _letters() -> dict[str, str]:
    """Map each ASCII letter to the characters that look or fold like it, including itself."""
    found = {chr(c): chr(c) for c in range(ord("a"), ord("z") + 1)}
    for character in map(chr, _STYLED):
        folded = unicodedata.normalize("NFKD", character).casefold()
        folded = "".join(c for c in folded if not unicodedata.combining(c))
        if folded in found:
            found[folded] += character
    for letter, others in _HOMOGLYPHS.items():
        found[letter] += others
    return found


def _pattern(hidden: str, letters: dict[str, str], less: str, square: str, bar: str) -> str:
    # Unbounded, yet linear: the stretches after two brackets never overlap.
    unseen = rf"[\s{hidden}]*+"

    def word(name: str) -> str:
        return unseen.join(f"[{letters[letter]}]" for letter in name)

    start = rf"{unseen}(?:[/／]{unseen})?+"
    tags = "|".join(word(name) for name in _TAGS)
    gap = r"\s{0,3}+"
    # Punctuation alone is an operator.
    name = r"(?![!-/:;=?@\[-^`{-~]{0,8}+[>＞﹥])[^\s<>＜＞﹤﹥‹›]{1,200}+"
    capital = r"(?-i:[A-ZＡ-Ｚ\U0001d400-\U0001d7cb])"
    capital += rf"[{hidden}]{{0,3}}+" if hidden else ""
    inner = rf"[\w:.\-{hidden}]"
    return (
        rf"{less}(?={start}(?:{tags})(?!\w))"
        rf"|{less}(?!/?(?:{_LEFT_ALONE})>){gap}(?:[/／]{gap})?+{name}{gap}[>＞﹥]"
        rf"|{less}(?={bar})|(?<={bar})[>＞﹥]"
        rf"|>(?=>(?-i:[A-Z]){{3,20}}<<)"
        rf"|{square}[{hidden}/／]{{0,4}}+(?={inner}{{0,40}}?(?:[a-z]{{3}}[_0-9]|(?:{capital}){{3}})){inner}{{1,60}}+[\]］﹈]"
        rf"|{square}(?={bar}[a-z_]{{1,20}}{bar}[\]］])"
        rf"|{square}(?=e~\[)|\](?=~!?b[\[\]])"
    )


_ALL = _letters()
_PLAIN = {letter: "".join(filter(str.isascii, others)) for letter, others in _ALL.items()}
_ASCII = re.compile(_pattern("", _PLAIN, "<", r"\[", r"\|"), re.IGNORECASE)
_ANY = re.compile(_pattern(_HIDDEN, _ALL, "[<＜﹤]", r"[\[［﹇]", "[|｜]"), re.IGNORECASE)
