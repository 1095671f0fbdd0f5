"""Reading numbers and signs: a text becomes tokens, whatever notation it was written in.

The text is untrusted. Every alternative of the scanner consumes what it matches for good
(possessive quantifiers, no nesting), so that a text costs a constant per character.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

Rational: TypeAlias = int | Fraction


def vocabulary(words: str) -> frozenset[str]:
    """The words of a text, for look-ups."""
    return frozenset(words.split())


MAX_DIGITS: Final = 40  # longer "numbers" are no arithmetic of a worked solution


class Token(NamedTuple):
    """One token; ``kind`` is one of the constants below, [start, end) its place in the text."""

    kind: str
    text: str
    start: int
    end: int


NUMBER: Final = "n"
WORDS: Final = "w"  # one or several words without meaning for the calculation: units, prose
SIGN: Final = "o"  # + - * / ^
OF: Final = "f"  # "of", which multiplies after a percentage or a fraction
RELATION: Final = "="  # =, ~ (approximately), or a verb
OPEN: Final = "("
CLOSE: Final = ")"
PERCENT: Final = "%"
FRACTION: Final = "q"  # LaTeX \frac: two groups follow
VULGAR: Final = "v"  # one character such as ½
BREAK: Final = ";"  # the end of a clause
QUESTION: Final = "?"
UNKNOWN: Final = "u"  # anything that would change the meaning of a calculation

APPROXIMATELY: Final = "~"
VERB: Final = "verb"
TIMES: Final = "times"  # likewise, else an adverb: "5 times a week"
LETTER_X: Final = "x"  # multiplies between two operands, else an unknown
_VERBS: Final = (
    "equals|is equal to|are equal to|equal to|is|are|gives|give|makes|make|yields|totals"
)
# With [ ] for spaces, since the scanner is a verbose expression.
_KEYS: Final = (
    "times|plus|minus|multiplied by|divided by|percent|of|approximately|x|" + _VERBS + "|and"
).replace(" ", "[ ]")
_TOKEN: Final = re.compile(
    rf"""
    (?P<n>[0-9]++(?:(?:[.,]|\{{,\}}|\\,(?=[0-9]{{3}}))[0-9]++)*+|(?<![\w.])\.[0-9]++)
  | (?P<v>[²³¹⁰-⁹½¼¾⅐-⅞])
  | (?P<x>(?<=[0-9)%}}])[xX](?=[ ]?[0-9.$(\\]))
  | (?P<k>(?<!\w)(?i:{_KEYS})(?![\w]))
  | (?P<w>[^\W\d][\w']*+(?:[ -](?!(?i:{_KEYS})(?!\w))[^\W\d][\w']*+)*+)
  | (?P<t>\\(?:text|textrm|mathrm|mbox|textit|mathit|textsf)[ ]?\{{[^{{}}\n]{{0,80}}+\}})
  | (?P<c>\\[A-Za-z]++|\\\\[ \t\n&$]{{0,20}}+(?==|~|\\approx)|\\.)
  | (?P<r>\n[ \t&$\n]{{0,20}}+(?==|~|\\approx)|(?<==)[ ]?\n(?=[ \t$]{{0,8}}[0-9.(\\]))
  | (?P<h>(?<=[0-9])-[A-Za-z]{{2,20}}+(?:-[a-z]{{1,20}}+){{0,4}}+(?![0-9]))
  | (?P<p>\*\*|==|=>|[<>!:+*/-]=|->|\.\.\.|…)
  | (?P<s>\S|\n)
    """,
    re.VERBOSE,
)
_PROPER: Final = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]*+)(?:\.[0-9]++)?+")

_COMMANDS: Final = {
    **dict.fromkeys(("times", "cdot", "ast"), (SIGN, "*")),
    "div": (SIGN, "/"),
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), (FRACTION, "")),
    **dict.fromkeys(("approx", "simeq"), (RELATION, APPROXIMATELY)),
    **dict.fromkeys(("eq", "equals"), (RELATION, "=")),
    **dict.fromkeys(("lbrack", "lparen"), (OPEN, "(")),
    **dict.fromkeys(("rbrack", "rparen"), (CLOSE, ")")),
    **dict.fromkeys(("circ", "degree"), (WORDS, "degrees")),
    **dict.fromkeys(("Rightarrow", "to", "implies", "rightarrow", "newline"), (BREAK, "")),
    **dict.fromkeys(("therefore", "because", "item", "begin", "end"), (BREAK, "")),
}
_SILENT: Final = vocabulary(
    "left right big Big bigg Bigg bigl bigr displaystyle textstyle quad qquad boxed fbox mathbf "
    "textbf boldsymbol mathbb bf rm cr hline underline emph large Large $ , ; ! : ( ) [ ] & # "
    "_"
) | {" "}
_SYMBOLS: Final = {
    **{c: (SIGN, c) for c in "+-*/^"},
    "=": (RELATION, "="),
    "~": (RELATION, APPROXIMATELY),
    **{c: (OPEN, c) for c in "([{"},
    **{c: (CLOSE, c) for c in ")]}"},
    "%": (PERCENT, "%"),
    **dict.fromkeys('.,;:\n"|<>', (BREAK, "")),
    "?": (QUESTION, "?"),
}
_KEYWORDS: Final = {
    "times": (SIGN, TIMES),
    "multiplied by": (SIGN, "*"),
    "x": (SIGN, LETTER_X),
    "divided by": (SIGN, "/"),
    "plus": (SIGN, "+"),
    "minus": (SIGN, "-"),
    "percent": (PERCENT, "%"),
    "of": (OF, "of"),
    "approximately": (RELATION, APPROXIMATELY),
    "and": (WORDS, "and"),
}
_DROPPED: Final = frozenset("$`&")

# One character for one, so that places in the folded text are places in the original.
_FOLDED: Final = {
    **dict.fromkeys("×✕✖·⋅∙∗＊", "*"),
    **dict.fromkeys("÷∕⁄／", "/"),
    **dict.fromkeys("−–﹣－‒‐‑", "-"),
    **dict.fromkeys("＝", "="),
    **dict.fromkeys("＋", "+"),
    **dict.fromkeys("≈≃≅", "~"),
    **dict.fromkeys("€£¥₹＄", "$"),
    **dict.fromkeys("（", "("),
    **dict.fromkeys("）", ")"),
    **dict.fromkeys("％", "%"),
    **dict.fromkeys("’‘", "'"),
    **dict.fromkeys("“”—→⇒•", ";"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000\u200b\r", " "),
    # Digits that look like ours or stand for them: full-width, mathematical, Arabic, Indic.
    **{
        chr(zero + d): str(d)
        for zero in (0xFF10, 0x660, 0x6F0, 0x966, 0x9E6, *range(0x1D7CE, 0x1D800, 10))
        for d in range(10)
    },
}
_FOLD: Final = {ord(key): value for key, value in _FOLDED.items()}
_SUPERSCRIPTS: Final = {"⁰¹²³⁴⁵⁶⁷⁸⁹"[d]: str(d) for d in range(10)}


def magnitude(value: Rational) -> Rational:
    """The absolute value."""
    return -value if value < 0 else value


def fold(text: str) -> str:
    """Return ``text`` with typographic signs and foreign digits as plain ones, place by place."""
    return text if text.isascii() and "\r" not in text else text.translate(_FOLD)


def scan(text: str, start: int, end: int) -> list[Token]:
    """Return the tokens of ``text[start:end]``, which must have been folded; linear time."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text, start, end):
        group = match.lastgroup
        piece = match.group()
        place = match.start()
        if group == "n":
            tokens.append(Token(NUMBER, piece, place, match.end()))
            continue
        if group in ("w", "h"):
            tokens.append(Token(WORDS, piece, place, match.end()))
            continue
        if group == "s" and piece in _DROPPED:
            continue
        read = _read(group, piece, text, place)
        if read is not None:
            tokens.append(Token(read[0], read[1], place, match.end()))
            if read[1] == "^" and piece in _SUPERSCRIPTS:
                tokens.append(Token(NUMBER, _SUPERSCRIPTS[piece], place, match.end()))
    return tokens


def _read(group: str | None, piece: str, text: str, place: int) -> tuple[str, str] | None:
    """Kind and meaning of what is neither a number nor words; None if it means nothing here."""
    if group in ("s", "v"):
        if piece in _SYMBOLS:
            return _SYMBOLS[piece]
        if piece in _SUPERSCRIPTS:
            return SIGN, "^"
        if piece == "°":
            return WORDS, "degrees"
        return (VULGAR, piece) if vulgar(piece) is not None else (UNKNOWN, piece)
    if group == "k":
        return _KEYWORDS.get(piece.lower(), (RELATION, VERB))
    if group == "x":
        return SIGN, "*"
    if group == "c":
        return _command(piece[1:])
    if group == "t":
        inside = piece[piece.index("{") + 1 : -1].strip()
        return (UNKNOWN if any(c.isdigit() for c in inside) else WORDS, inside) if inside else None
    if group == "p":
        return _pair(piece, text, place)
    return None  # a line break before "="


def _command(name: str) -> tuple[str, str] | None:
    if name[:1] == "\\":
        return None if len(name) > 1 else (BREAK, "")
    if name in ("*", "-", "+", "%", "{", "}"):
        return _SYMBOLS[name]
    return None if name in _SILENT else _COMMANDS.get(name, (UNKNOWN, name))


def _pair(piece: str, text: str, place: int) -> tuple[str, str] | None:
    """Two-character signs. ``**`` is a power between operands and otherwise Markdown's bold."""
    before = text[max(0, place - 1) : place]
    if piece in ("...", "…") and before.isdigit():
        return None  # 8.333...%
    if piece != "**":
        return (BREAK, "") if piece in ("=>", "->") else (UNKNOWN, piece)
    after = text[place + 2 : place + 3]
    tight = (before.isdigit() or before == ")") and (after.isdigit() or after == "(")
    loose = before == " " == after and text[max(0, place - 2) : place - 1].isdigit()
    return (SIGN, "^") if tight or loose else None


def number(text: str) -> tuple[Rational, int] | None:
    """Value and number of decimals of a NUMBER token; None if it is ambiguous or too long.

    ``1,200`` is a number, ``1,5`` may be a list or a decimal comma, ``1.2.3`` is a version.
    """
    if len(text) > MAX_DIGITS:
        return None
    if text.isdigit():
        # 0900 is a time; a bare 000 belongs to what stands before it
        return (int(text), 0) if text[0] != "0" or len(text) == 1 else None
    text = text.replace("{,}", ",").replace("\\,", ",")
    if not _PROPER.fullmatch(text):
        return None
    if text[0] == "0" and text[1:2].isdigit():
        return None
    whole, _, decimals = text.replace(",", "").partition(".")
    if not decimals:
        return int(whole), 0
    return Fraction(int(whole + decimals), 10 ** len(decimals)), len(decimals)


def vulgar(character: str) -> Fraction | None:
    """Value of a one-character fraction such as ½."""
    if character.isascii() or unicodedata.category(character) != "No":
        return None
    top, slash, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
    if not slash or not (top.isdecimal() and bottom.isdecimal()):
        return None
    return Fraction(int(top), int(bottom))
