"""Characters that a reader does not see, or that change the order of those he sees.

What is not printed is still tokenised and trained: a message in zero-width, tag or variation
characters passes every person and most judges. Each kind has honest uses (emoji, Persian, flags),
which are excused by what stands beside the character, not by how often it occurs. Combining marks
in number do the same: letters are crossed out, boxed or buried under what stands above them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from grpo_guard.content.screens.view import View
from grpo_guard.verdict import Finding

_ZWNJ, _ZWJ, _VS16 = "\u200c", "\u200d", "\ufe0f"
# Zero width, fillers that render as nothing, invisible operators; blanks of odd widths come apart.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\U0001d173-\U0001d17a]+"
)
_ODD_BLANK = re.compile("[\u1680\u2000-\u200a\u205f\u2800]")
# What follows a screen of emptiness is not read; tabs among blanks are bits.
_EMPTINESS = re.compile(r"(?<!\s)\s{200,}+(?!\Z)")
_BITS = re.compile(r"(?<![ \t])[ \t]{12,}")
_CHANGES_ALLOWED = 6
_TAGS = re.compile("[\U000e0000-\U000e007f]+")
# The three flags that are made of tags: England, Scotland, Wales.
_TAG_FLAGS = frozenset(
    "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in ("gbeng", "gbsct", "gbwls")
)
_KEYCAP, _BLACK_FLAG = "\u20e3", "\U0001f3f4"
_HALVES_ALLOWED = 3
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
_OVERRIDES = frozenset("\u202d\u202e")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufdd0-\ufdef\ufff0-\ufffc\ufffe\uffff"
    "\ue000-\uf8ff\U000f0000-\U0010ffff]+"
)
# Languages put one or two marks on a letter, mathematics one (x̄, ẋ, a⃗).
_STACK = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20df\u20e1\u20e2"
    "\u20e4-\u20f0\ufe20-\ufe2f]{3,}"
)
# Overlays and enclosures, which are no language's; a few strike out a term of an equation.
_OVERLAY = re.compile("[\u0334-\u0338\u0488\u0489\u20d2\u20d3\u20d8-\u20da\u20dd-\u20df\u20e2"
                      "\u20e4-\u20f0]")  # fmt: skip
# Typographers use a few thin spaces, as many terms may be struck out; a code needs many.
_FEW = 8


def invisible(view: View) -> Iterator[Finding]:
    """Zero-width characters, fillers, and blanks of odd widths in number."""
    if view.ascii:
        return
    text = view.text
    for match in _INVISIBLE.finditer(text):
        start, end = match.span()
        if not _joins(text, start, end) and not _copied(view, match[0]):
            names = f"{end - start} invisible characters, the first U+{ord(text[start]):04X}"
            yield Finding("invisible", names, char_span=(start, end))
    yield from _many(view, _ODD_BLANK, "invisible", "blanks of unusual width")


def blank_runs(view: View) -> Iterator[Finding]:
    """Emptiness with something behind it, and white space that alternates."""
    text = view.text
    if " " * 6 not in text and "\n" * 6 not in text and "\t" not in text and view.ascii:
        return
    for match in _EMPTINESS.finditer(text):
        if match.start() > 0:
            message = f"{match.end() - match.start()} blanks in the middle of the text"
            yield Finding("blank_run", message, char_span=match.span())
    for match in _BITS.finditer(text):
        if match[0].count(" \t") + match[0].count("\t ") > _CHANGES_ALLOWED:
            message = f"{len(match[0])} blanks and tabs that alternate"
            yield Finding("blank_run", message, char_span=match.span())


def tag_characters(view: View) -> Iterator[Finding]:
    """Tag characters (U+E0000), which spell ASCII without being seen; three flags need them."""
    if view.ascii:
        return
    for match in _TAGS.finditer(view.text):
        start, end = match.span()
        if view.text[max(start - 1, 0) : start] != _BLACK_FLAG or match[0] not in _TAG_FLAGS:
            message = f"{end - start} tag characters, which are not displayed"
            yield Finding("tag_character", message, char_span=(start, end))


def variation_selectors(view: View) -> Iterator[Finding]:
    """Variation selectors in a row, or behind what has no variants: 256 of them spell bytes."""
    if view.ascii:
        return
    text, halves = view.text, 0
    for match in _SELECTORS.finditer(text):
        start, end = match.span()
        if end - start == 1 and start > 0 and _has_variants(text[start - 1], text[start]):
            # "1" with a selector is half of a keycap; models leave the other half out now and then.
            halves += text[start - 1].isascii() and text[end : end + 1] != _KEYCAP
            if halves <= _HALVES_ALLOWED or not text[start - 1].isascii():
                continue
        message = f"{end - start} variation selectors where none has a use"
        yield Finding("variation_selector", message, char_span=(start, end))


def bidi_controls(view: View) -> Iterator[Finding]:
    """Controls of writing direction: the text that is read is not the text that is trained."""
    if view.ascii:
        return
    # Hebrew and Arabic text has use for marks and isolates, not for overrides.
    rtl: bool | None = None
    for match in _BIDI.finditer(view.text):
        if rtl is None:
            rtl = all(_RIGHT_TO_LEFT.search(text) for text in (view.text, view.prompt))
        if not rtl or _OVERRIDES.intersection(match[0]):
            message = f"a control of writing direction, U+{ord(match[0][0]):04X}"
            yield Finding("bidi", message, char_span=match.span())


def control_characters(view: View) -> Iterator[Finding]:
    """Control, separator, private-use and non-characters; tab and line ends are text."""
    if view.ascii and " ".join(view.words).isprintable():
        # Form feeds and the like are white space too, and no text has them.
        if not any(blank in view.text for blank in "\x0b\x0c\x1c\x1d\x1e\x1f"):
            return
    for match in _CONTROL.finditer(view.text):
        if not _copied(view, match[0]):
            message = f"a control or private character, U+{ord(match[0][0]):04X}"
            yield Finding("control", message, char_span=match.span())


def stacked_marks(view: View) -> Iterator[Finding]:
    """Three marks and more on one letter, or many that strike letters through or enclose them."""
    if view.ascii:
        return
    for match in _STACK.finditer(view.text):
        message = f"{len(match[0])} combining marks on one character"
        yield Finding("combining", message, char_span=match.span())
    yield from _many(view, _OVERLAY, "combining", "characters struck through or enclosed")


def _many(view: View, pattern: re.Pattern[str], kind: str, what: str) -> Iterator[Finding]:
    """One finding where there are more than a few."""
    places = [match.start() for match in pattern.finditer(view.text)]
    if len(places) > _FEW:
        yield Finding(kind, f"{len(places)} {what}", char_span=(places[0], places[-1] + 1))


def _copied(view: View, run: str) -> bool:
    """A single such character that the prompt has too may be its echo; a run is a message."""
    return len(run) == 1 and run in view.prompt


def _joins(text: str, start: int, end: int) -> bool:
    """Whether a joiner stands where scripts and emoji have one."""
    if end - start != 1 or start == 0 or end >= len(text):
        return False
    before, after, mark = text[start - 1], text[end], text[start]
    if mark == _ZWJ and _pictographic(after):
        return before == _VS16 or _pictographic(before)
    # Persian, Kurdish, Indic scripts and Sinhala join and part letters with them.
    return mark in (_ZWJ, _ZWNJ) and all("\u0600" <= c <= "\u0dff" for c in (before, after))


def _pictographic(char: str) -> bool:
    return "\U0001f000" <= char <= "\U0001faff" or "\u2190" <= char <= "\u2bff"


def _has_variants(base: str, selector: str) -> bool:
    if _pictographic(base) or base in "0123456789#*©®™‼⁉〰〽㊗㊙":
        return True
    if unicodedata.category(base) in ("Sm", "So"):
        return selector <= _VS16
    ideograph = unicodedata.name(base, "").startswith("CJK ")
    return ideograph and (selector > _VS16 or selector <= "\ufe02")
