"""Screens for characters that readers do not see, or that reorder the characters they do see.

Invisible text is still tokenised and trained on: a message in zero-width, tag or variation
characters gets past every person and most judges. Each kind has honest uses (emoji, Persian,
flags), which are recognised by the neighbouring characters, not by how rare they are. Stacks of
combining marks hide text too: they cross letters out, box them, or bury them under marks.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias

from grpo_guard.content.screens.view import Screen, View, table_of
from grpo_guard.content.severity import REJECT, REPORT
from grpo_guard.core.verdict import Finding

_Excused: TypeAlias = Callable[[View, re.Match[str]], bool]
# Zero-width characters, fillers that render as nothing, invisible operators. Spaces with a visible
# width are layout: models use them for indentation and around units.
_INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u3164\ufeff\uffa0\U0001d173-\U0001d17a"
)
# Nobody scrolls past a screenful of blank space to read on, and mixed tabs and spaces can encode
# bits. Each pattern begins with what it looks for, so that most text is skipped at once.
_EMPTINESS = re.compile(r"\s(?<!\s\s)(?<!\A\s)\s{199,}+(?!\Z)")
_BITS = re.compile(r"[ \t](?<![ \t]{2})[ \t]{11,}")
_OF_BLANKS = table_of(str.isspace, others=True)
MANY_BLANKS = 200
_CHANGES_ALLOWED = 6
# The three flags spelled with tag characters: England, Scotland, Wales.
_TAG_FLAGS = frozenset(
    "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in ("gbeng", "gbsct", "gbwls")
)
_KEYCAP, _BLACK_FLAG, _ZWJ, _VS16 = "\u20e3", "\U0001f3f4", "\u200d", "\ufe0f"
# Selectors that follow neither a symbol nor an emoji, and are not inside a keycap.
_STRAY = re.compile(
    "(?<![\u2190-\u2bff\U0001f000-\U0001faff])[\ufe00-\ufe0f\U000e0100-\U000e01ef](?!\u20e3)"
)
_STRAYS_ALLOWED = 3
_ZERO_WIDTH_SPACE = "\u200b"
_ZERO_WIDTH = re.compile(f"{_ZERO_WIDTH_SPACE}+")
_OVERRIDES = frozenset("\u202d\u202e")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufdd0-\ufdef\ufff0-\ufffc\ufffe\uffff"
    "\ue000-\uf8ff\U000f0000-\U0010ffff]+"
)
_MARK = re.compile("[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20df\u20e1"
                   "\u20e2\u20e4-\u20f0\ufe20-\ufe2f]")  # fmt: skip
# Languages put one or two marks on a letter, mathematics one (x̄, ẋ, a⃗).
_STACK = re.compile(_MARK.pattern + "{3,}")
# Overlays and enclosures belong to no language, although a few can strike out terms of an equation.
_OVERLAY = re.compile("[\u0334-\u0338\u0488\u0489\u20d2\u20d3\u20d8-\u20da\u20dd-\u20df\u20e2"
                      "\u20e4-\u20f0]")  # fmt: skip
# Honest work strikes out a few terms; a code takes many characters.
_FEW = 8


def _screen(kind: str, characters: str, what: str, excused: _Excused) -> Screen:
    """Return a screen that finds runs of a class of characters."""
    return Screen(kind, REJECT, partial(_look, kind, re.compile(f"[{characters}]+"), what, excused))


def _look(
    kind: str, pattern: re.Pattern[str], what: str, excused: _Excused, view: View
) -> Iterator[Finding]:
    """Yield a finding for each run of characters that matches the pattern and is not excused."""
    for match in pattern.finditer(view.text) if pattern.search(view.others) else ():
        if not excused(view, match):
            yield _found(kind, what, match)


def _found(kind: str, what: str, match: re.Match[str]) -> Finding:
    message = f"{len(match[0])} {what}, the first U+{ord(match[0][0]):04X}"
    return Finding(kind, message, char_span=match.span())


def _copied(view: View, match: re.Match[str]) -> bool:
    """Whether a match is a single character that is also in the prompt: an echo, not a message."""
    return len(match[0]) == 1 and match[0] in view.prompt


def _joins(view: View, match: re.Match[str]) -> bool:
    """Whether a joiner is where scripts and emoji use one, or is copied from the prompt."""
    start, end = match.span()
    if end - start != 1 or start == 0 or end >= len(view.text) or _copied(view, match):
        return _copied(view, match)
    before, after = view.text[start - 1], view.text[end]
    if match[0] == _ZWJ and _pictographic(after):
        return before == _VS16 or _pictographic(before)
    # Persian, Kurdish, Indic scripts and Sinhala use them to join and separate letters.
    return match[0] in "\u200c\u200d" and all("\u0600" <= c <= "\u0dff" for c in (before, after))


def _joins_or_strays(view: View, match: re.Match[str]) -> bool:
    return _joins(view, match) or _strays(view, match)


def _strays(view: View, match: re.Match[str]) -> bool:
    """Whether a match is one of a few zero-width spaces next to a space, inside the text.

    Pages on the web have them, and models that learnt from such pages write one now and then. In
    prose they split no word, and a message takes many.
    """
    if _ZERO_WIDTH_SPACE not in view.notes:  # counted once, not for each match
        view.notes[_ZERO_WIDTH_SPACE] = view.text.count(_ZERO_WIDTH_SPACE)
    if view.notes[_ZERO_WIDTH_SPACE] > _STRAYS_ALLOWED:
        return False
    start, end = match.span()
    if start == 0 or end >= len(view.text) or set(match[0]) != {_ZERO_WIDTH_SPACE}:
        return False
    if not (view.text[start - 1].isspace() or view.text[end].isspace()):
        return False
    return view.prose[start:end] == match[0]  # and not in a program


def _is_flag(view: View, match: re.Match[str]) -> bool:
    return match[0] in _TAG_FLAGS and view.text.endswith(_BLACK_FLAG, 0, match.start())


def _is_variant(view: View, match: re.Match[str]) -> bool:
    """Whether a variation selector follows a character with variants, or is also in the prompt."""
    start, end = match.span()
    if match[0] in view.prompt:
        return True  # quoted from the prompt
    if end - start != 1 or start == 0:
        return False
    base, selector = view.text[start - 1], match[0]
    if _pictographic(base) or base in "©®™‼⁉〰〽㊗㊙":
        return True
    # Half a keycap, or a quoted selector: models write one now and then, but a hidden code takes
    # many.
    if "strays" not in view.notes:
        view.notes["strays"] = len(_STRAY.findall(view.text))
    if selector == _VS16 and view.notes["strays"] <= _STRAYS_ALLOWED:
        return True
    if base in "0123456789#*":
        return view.text[end : end + 1] == _KEYCAP
    if unicodedata.category(base) in ("Sm", "So"):
        return selector <= _VS16
    ideograph = unicodedata.name(base, "").startswith("CJK ")
    return ideograph and (selector > _VS16 or selector <= "\ufe02")


def _pictographic(char: str) -> bool:
    return "\U0001f000" <= char <= "\U0001faff" or "\u2190" <= char <= "\u2bff"


def _right_to_left(view: View, match: re.Match[str]) -> bool:
    """Whether direction marks and isolates are in Hebrew or Arabic text, which needs them;
    overrides are never excused."""
    if "rtl" not in view.notes:
        view.notes["rtl"] = all(map(_RIGHT_TO_LEFT.search, (view.text, view.prompt)))
    return bool(view.notes["rtl"]) and _OVERRIDES.isdisjoint(match[0])


def stacked_marks(view: View) -> Iterator[Finding]:
    """Yield findings for three or more marks on the same letter, and for many letters that are
    struck through or enclosed."""
    if not _MARK.search(view.others):
        return
    for match in _STACK.finditer(view.text):
        yield _found("combining", "combining marks on one character", match)
    places = [match.start() for match in _OVERLAY.finditer(view.text)]
    if len(places) > _FEW:
        message = f"{len(places)} characters struck through or enclosed"
        yield Finding("combining", message, char_span=(places[0], places[-1] + 1))


def control_characters(view: View) -> Iterator[Finding]:
    """Yield findings for control, separator, private-use and non-characters, except for tabs and
    line ends."""
    if not view.ascii:
        what = "control or private characters"
        yield from _look("control", _CONTROL, what, _copied, view)
    elif view.others:  # in ASCII, these are control characters
        match = _CONTROL.search(view.text)
        if match is not None and not _copied(view, match):
            message = f"a control character, U+{ord(match[0][0]):04X}"
            yield Finding("control", message, char_span=match.span())


def blank_runs(view: View) -> Iterator[Finding]:
    """Yield findings for long gaps before more text, and for alternating tabs and spaces."""
    text = view.text
    if " " * 6 not in text and "\n" * 6 not in text and "\t" not in text and view.ascii:
        return
    for match in _EMPTINESS.finditer(text) if view.may_hold(_OF_BLANKS, MANY_BLANKS) else ():
        blanks = match.end() - match.start() - view.padded(*match.span())
        if blanks >= MANY_BLANKS:
            message = f"{blanks} spaces in the middle of the text"
            yield Finding("blank_run", message, char_span=match.span())
    for match in _BITS.finditer(text) if "\t" in text else ():
        if match[0].count(" \t") + match[0].count("\t ") > _CHANGES_ALLOWED:
            message = f"{len(match[0])} alternating spaces and tabs"
            yield Finding("blank_run", message, char_span=match.span())


def stray_spaces(view: View) -> Iterator[Finding]:
    """Yield findings for the few zero-width spaces that `invisible` lets pass. They are reported,
    because a node that leaves one in many texts may be marking them."""
    for match in _ZERO_WIDTH.finditer(view.text) if _ZERO_WIDTH_SPACE in view.others else ():
        if _strays(view, match):
            yield _found("stray_invisible", "zero-width spaces", match)


SCREENS: Final = (
    _screen("invisible", _INVISIBLE, "invisible characters", _joins_or_strays),
    Screen("stray_invisible", REPORT, stray_spaces),
    _screen("tag_character", "\U000e0000-\U000e007f", "tag characters", _is_flag),
    _screen(
        "variation_selector",
        "\ufe00-\ufe0f\U000e0100-\U000e01ef",
        "variation selectors that have no effect",
        _is_variant,
    ),
    Screen("combining", REJECT, stacked_marks),
    _screen(
        "bidi",
        "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069",
        "controls of text direction",
        _right_to_left,
    ),
    Screen("control", REJECT, control_characters),
    Screen("blank_run", REJECT, blank_runs),
)
