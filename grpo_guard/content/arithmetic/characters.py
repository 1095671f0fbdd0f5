"""Replace typographic signs and non-ASCII digits with plain ones, preserving all offsets."""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Final

ARROW: Final = "→"
# Each replacement is a single character, so offsets in the folded text are valid in the original.
_SIGNS: Final = {
    **dict.fromkeys("×✕✖·⋅∙∗＊⨯╳⨉", "*"),
    **dict.fromkeys("÷∕⁄／➗", "/"),
    **dict.fromkeys("−–﹣－‒‐‑➖˗⁃", "-"),
    **dict.fromkeys("＝﹦꞊゠═", "="),
    **dict.fromkeys("＋﹢➕", "+"),
    **dict.fromkeys("≈≃≅", "~"),
    **dict.fromkeys("（", "("),
    **dict.fromkeys("）", ")"),
    **dict.fromkeys("％", "%"),
    **dict.fromkeys("’‘", "'"),
    **dict.fromkeys("“”—•", ";"),
    **dict.fromkeys("хХ", "x"),  # Cyrillic
    **{"ſ": "s", "\u212a": "k", "ı": "i", "İ": "i"},  # `re` matches these as s, k and i
    **dict.fromkeys("⇒⟹➔➜⟶➡", ARROW),
    "¢": "¢",  # kept, because it is a hundredth of the other currencies
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **{"①②③④⑤⑥⑦⑧⑨"[d]: str(d + 1) for d in range(9)},
}
_SAME: Final = bytes(code for code in range(128) if chr(code) != "\r")  # unchanged by folding
_CONGRUENT: Final = re.compile(r"≡(?![^\n]{0,80}(?i:mod))")  # "2 + 2 ≡ 5" without a modulus
_DASH: Final = re.compile(r"(?<=[0-9])—(?=[0-9])|(?<=[0-9] )—(?= [0-9])")  # a minus, not a break
_CODE: Final = ("utf-8", "surrogatepass")
# For more distinct characters, use one table, because each replacement is a pass over the text.
_MOST_REPLACED: Final = 12


def fold(text: str) -> str:
    """Return ``text`` with typographic signs and non-ASCII digits made plain, at the same length.

    Look-alike signs and invisible characters must not hide an equation: every Unicode decimal digit
    becomes its ASCII digit, every currency sign a dollar sign, and every space or invisible format
    character a plain space.
    """
    if text.isascii() and "\r" not in text:
        return text
    if "≡" in text:
        text = _CONGRUENT.sub("=", text)
    if "—" in text:
        text = _DASH.sub("-", text)
    # In bytes, ASCII is skipped twenty times as fast as with a pattern.
    others = set(text.encode(*_CODE).translate(None, _SAME).decode(*_CODE))
    if len(others) > _MOST_REPLACED:
        return text.translate({ord(character): _plain(character) for character in others})
    for character in others:
        plain = _plain(character)
        if plain != character:
            text = text.replace(character, plain)
    return text


def lowered(folded: str) -> str:
    """Return folded text in lower case, or unchanged if lower case would alter its length."""
    small = folded.lower()
    return small if len(small) == len(folded) else folded


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Sc":
        return "$"
    return " " if category in ("Zs", "Cf", "Cc") else character


def vulgar(character: str) -> Fraction | None:
    """Return the value of a one-character fraction such as ½, or None for other characters."""
    if character.isascii() or unicodedata.category(character) != "No":
        return None
    top, slash, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
    if not slash or not (top.isdecimal() and bottom.isdecimal()):
        return None
    return Fraction(int(top), int(bottom))
