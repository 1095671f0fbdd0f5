"""Which screens a text needs: most texts need none, and a few passes find that out.

Each screen looks for something that cannot be there without a mark that is cheaper to see: a word,
a character, a run of one class of characters. The marks are looked for here, in bytes that are
mapped to classes. A screen that is left out would have found nothing; the tests compare both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from grpo_guard.content.screens import hidden_markup, judges, languages, orders, spelt
from grpo_guard.content.screens.template_tokens import ROLE_GATES, may_be_broken
from grpo_guard.content.screens.view import byte_classes

# Typography and symbols of honest work. No screen has a rule about them, none is a letter or a
# blank. A text with any other character gets every screen.
HARMLESS = frozenset("‘’“”„…–—•·×÷±−√∞≈≠≤≥→⇒⟹∴∵∠°′″€£¥¢½¼¾⅓⅔¹²³⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉✓✔✅")
_WORDS = (
    ROLE_GATES | judges.HEAD_GATES | judges.BANNER_GATES | judges.TAG_GATES | judges.KEY_GATES
    | orders.GATES | languages.ALL | spelt.GATES | hidden_markup.GATES
)  # fmt: skip
_NAME_OF = {word.encode(): word for word in _WORDS if word.isascii()}
_GATES = frozenset(_NAME_OF)

_SMALL = b"abcdefghijklmnopqrstuvwxyz"
_CAPITALS = _SMALL.upper()
_DIGITS = b"0123456789"
_ASCII = bytes(range(128))
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r") | {127})
_LETTERS = bytes(b if b in _SMALL else b + 32 if b in _CAPITALS else 32 for b in range(256))
_BLANKS = byte_classes(b"x", (_CONTROLS, b"!"), (b" \t\n\r", b" "))
_RUNS = byte_classes(b" ", (_SMALL + _CAPITALS + _DIGITS + b"+/_-", b"x"))
_BANNERS = byte_classes(b".", (b"-=#*_~<>{+", b"b"))
_HEADS = (b"#", b"*", b"_", b"[", b"<")
_NAMED = re.compile(rb"<[\s/A-Za-z|]|<<[\s/Ss]|\[[\s/|A-Za-z]")
_LONG_RUN = re.compile(rb"[A-Za-z0-9+/_-]{16,}+")
_NO_LETTERS = bytes(set(range(256)) - set(_SMALL + _CAPITALS))


class Suspects(NamedTuple):
    """What the marks in a text point to.

    The screens of answers are not among the names: their formats are the caller's, and so are the
    tokens of a tokenizer.
    """

    names: frozenset[str]
    words: frozenset[str]


def suspects(text: str) -> Suspects | None:
    """Screens that could find something, and the words that they ask for; None = any of them."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text):
        rest = data.translate(None, _ASCII)
        if not HARMLESS.issuperset(rest.decode("utf-8", "surrogatepass")):
            return None
    blanks = data.translate(_BLANKS)
    if b"!" in blanks:
        return None
    found = _GATES.intersection(data.translate(_LETTERS).split())
    words = frozenset([_NAME_OF[word] for word in found])
    return Suspects(frozenset(_names(text, data, blanks, words)), words)


def _names(text: str, data: bytes, blanks: bytes, words: frozenset[str]) -> Iterator[str]:
    runs = data.translate(_RUNS)
    if b" " * 12 in blanks:
        yield "blank_run"
    if b"x" * 65 in blanks:
        yield "overlong_token"
    if len(text) <= judges.LONGEST_OPENING or b"x" * 2 not in runs:
        yield "master_key"
    if _may_hold_tokens(text, data) or _any_of(ROLE_GATES, words):
        yield "template_token"
    if (
        (b"<" in data and b"<!--" in data)
        or (b"]" in data and b"]:" in data)
        or _any_of(hidden_markup.GATES, words)
    ):
        yield "hidden_markup"
    if _may_be_encoded(data, blanks, runs, words):
        yield "encoded"
    if (b"[" in data and b"[[" in data) or (words and _may_judge(data, words)):
        yield "judge_delimiter"
    if orders.may_order(words):
        yield "grader_order"
    if len(words) >= 3 and languages.may_switch(words):
        yield "language_switch"


def _any_of(gates: frozenset[str], words: frozenset[str]) -> bool:
    return not words.isdisjoint(gates)


def _may_hold_tokens(text: str, data: bytes) -> bool:
    # Spelt out: this runs for every text, and a loop costs more than what it looks for.
    if not (
        b"<" in data or b"[" in data or b"|" in data or b">" in data or b"]" in data or b"&" in data
    ):
        return False
    return _NAMED.search(data) is not None or may_be_broken(text, text.lower())


def _may_judge(data: bytes, words: frozenset[str]) -> bool:
    colon = b":" in data
    if colon and _any_of(judges.HEAD_GATES, words):
        return True
    if _any_of(judges.VERDICT_GATES, words) and any(mark in data for mark in _HEADS):
        return True
    if _any_of(judges.BANNER_GATES, words) and b"bb" in data.translate(_BANNERS):
        return True
    if b"<" in data and _any_of(judges.TAG_GATES, words):
        return True
    return colon and (b'"' in data or b"'" in data) and _any_of(judges.KEY_GATES, words)


def _may_be_encoded(data: bytes, blanks: bytes, runs: bytes, words: frozenset[str]) -> bool:
    """Whether there is a run that could be a payload, or a piece of an escape."""
    if b"x" * 16 in runs and _has_letters_in_a_run(data):
        return True
    if data.count(b"%") >= 6 or (b"x" * 20 in blanks and _has_base85(data, blanks)):
        return True
    if b"\\" in data and (b"\\x" in data or b"\\u" in data):
        return True
    if b"&" in data and b"&#" in data:
        return True
    return spelt.may_be_spelt(data, words)


def _has_letters_in_a_run(data: bytes) -> bool:
    """Digits alone are a quotient that weak models write out, and no payload."""
    return any(match[0].translate(None, _NO_LETTERS) for match in _LONG_RUN.finditer(data))


def _has_base85(data: bytes, blanks: bytes) -> bool:
    at = blanks.find(b"x" * 20)
    while at >= 0:
        end = blanks.find(b" ", at)
        end = len(blanks) if end < 0 else end
        if spelt.may_be_base85(data[at:end]):
            return True
        at = blanks.find(b"x" * 20, end)
    return False
