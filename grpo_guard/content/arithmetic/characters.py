"""Characters: typographic signs and digits of any script as plain ones, place by place."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Final

ARROW: Final = "→"
# One character for one, so that places in the folded text are places in the original.
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
    **{"ſ": "s", "\u212a": "k", "ı": "i", "İ": "i"},  # what `re` takes for s, k and i in any case
    **dict.fromkeys("⇒⟹➔➜⟶➡", ARROW),
    "¢": "¢",  # a hundredth of the other currencies
    **dict.fromkeys("\u2028\u2029\x85", "\n"),
    **{"①②③④⑤⑥⑦⑧⑨"[d]: str(d + 1) for d in range(9)},
}
_OTHER: Final = re.compile(r"[^\x00-\x0c\x0e-\x7f]")
_CONGRUENT: Final = re.compile(r"≡(?![^\n]{0,80}(?i:mod))")  # "2 + 2 ≡ 5" with no modulus to it
_DASH: Final = re.compile(r"(?<=[0-9])—(?=[0-9])|(?<=[0-9] )—(?= [0-9])")  # a minus, not a clause
# More different ones than this are looked up one by one; replacing goes over the text each time.
_MOST_REPLACED: Final = 12


def fold(text: str) -> str:
    """Return ``text`` with typographic signs and foreign digits as plain ones, place by place.

    Signs that only look like ours, and characters that cannot be seen at all, must not hide an
    equation: every decimal digit of Unicode is read as what it stands for, every currency as a
    dollar, every space and invisible format character as a space.
    """
    if text.isascii() and "\r" not in text:
        return text
    if "≡" in text:
        text = _CONGRUENT.sub("=", text)
    if "—" in text:
        text = _DASH.sub("-", text)
    others = set(_OTHER.findall(text))
    if len(others) > _MOST_REPLACED:
        return text.translate({ord(character): _plain(character) for character in others})
    for character in others:
        plain = _plain(character)
        if plain != character:
            text = text.replace(character, plain)
    return text


def lowered(folded: str) -> str:
    """Small letters, place by place: a text whose length would change stays as it is."""
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
    """Value of a one-character fraction such as ½."""
    if character.isascii() or unicodedata.category(character) != "No":
        return None
    top, slash, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
    if not slash or not (top.isdecimal() and bottom.isdecimal()):
        return None
    return Fraction(int(top), int(bottom))
