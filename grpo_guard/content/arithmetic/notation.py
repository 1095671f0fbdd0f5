"""The tokenizer for mathematical text in any notation.

The text is untrusted, so every quantifier in the scanner is possessive or bounded: the cost per
character is constant.
"""

import re
from fractions import Fraction
from functools import lru_cache, partial
from typing import Final, NamedTuple

from grpo_guard.content.arithmetic.characters import ARROW, vulgar
from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.word_set import word_set

MAX_DIGITS: Final = 40  # longer "numbers" do not occur in a worked solution


class Token(NamedTuple):
    """A token; ``kind`` is one of the constants below, and [start, end) is its span in the text."""

    kind: str
    text: str
    start: int
    end: int


# Bypasses the constructor of `Token`, which would take longer than finding the token.
_token: Final = partial(tuple.__new__, Token)
NUMBER: Final = "n"
WORDS: Final = "w"  # one or more words that do not affect the calculation: units, prose
SIGN: Final = "o"  # + - * / ^
OF: Final = "f"  # "of", which multiplies after a percentage or a fraction
RELATION: Final = "="  # =, ~ (approximately), or a verb
OPEN: Final = "("
CLOSE: Final = ")"
PERCENT: Final = "%"
ROOT: Final = "r"
FRACTION: Final = "q"  # LaTeX \frac: two groups follow
BINOMIAL: Final = "binomial"  # text of a FRACTION token
LOGARITHM: Final = "logarithm"  # text of a ROOT token
VULGAR: Final = "v"  # a one-character fraction such as ½
BREAK: Final = ";"  # the end of a clause
QUESTION: Final = "?"
UNKNOWN: Final = "u"  # anything else, which could change the meaning of a calculation
OUTSIDE: Final = " "  # before the first token and after the last

APPROXIMATELY: Final = "~"
VERB: Final = "verb"
ASIDE: Final = "aside"  # joins a bare calculation and its result: "6 + 7, which is 13"
TIMES: Final = "times"  # multiplies between two operands; otherwise an adverb: "5 times a week"
LETTER_X: Final = "x"  # multiplies between two operands; otherwise an unknown
_TO_BE: Final = "is|are|was|were|will be|would be|must be|should be"
_VERBS: Final = (
    "equals to|equals|equal to|equal|equaled|equalled|is equal to|are equal to|must equal|"
    f"should equal|will equal|{_TO_BE}|gives|give|makes|make|yields|produces|leaves|totals|becomes|"
    "comes to|comes out to|adds up to|add up to|amounts to|results in|turns out to be|works out to"
)
_ASIDES: Final = (
    r"which is|which was|which equals|which gives|which makes|which comes to|which would be|i\.e\.|"
    "that is|it is|this is|we get|you get"
)
# Spaces are written as [ ], because the scanner below is a verbose regular expression.
_KEYS: Final = (
    f"times|plus|minus|multiplied by|divided by|percent|of|approximately|x|{_ASIDES}|{_VERBS}|and"
).replace(" ", "[ ]")
_KEY: Final = re.compile(rf"(?i:{_KEYS})(?!\w)")
_BEHIND: Final = f"{_ASIDES}|equals|gives|makes|yields|totals".replace(" ", "[ ]")
_TOKEN: Final = re.compile(
    rf"""
    # Blanks are taken along, or each of them would be a failed match of its own.
    (?:[ ]++(?!\n))?+(?:
    (?P<f>(?:(?!Rs\.|[xX](?![a-z]))[A-Z]?[a-z]++(?:'s)?+(?:[ ]|(?=[.,;:!?)\n])))++)
  | (?P<n>[0-9]++(?:(?:[.,]|\{{,\}}|\\,(?=[0-9]{{3}}))[0-9]++)*+
    | (?:(?<![\w.])|(?<=[0-9][xX]))\.[0-9]++)
  # Plain symbols that are no part of anything else, before the rarer alternatives fail on them.
  | (?P<i>[()\[\]{{}}$&%]|\+(?!=)|=(?![=>])|[*/-](?=[ ][0-9])|[/-](?=[0-9])|\.(?!\.)|,(?![ ]))
  | (?P<t>\\(?:text|textrm|mathrm|mbox|textit|mathit|textsf)[ ]?\{{[^{{}}\n0-9]{{0,80}}+\}})
  | (?P<c>\\(?!(?:text)?color\{{[a-z]{{1,20}}\}})[A-Za-z]++
    | \\\\[ \t\n&$]{{0,20}}+(?==|~|\\approx)|\\(?![A-Za-z]).)
  | (?P<v>⁻?[²³¹⁰⁴-⁹]{{1,20}}+|[½¼¾⅐-⅞])
  | (?P<x>[xX](?<=[0-9)%}}].)(?<!^0.)(?<![^0-9.,]0.)
      (?=[ ]?\$?\.?[0-9(]|[ ]?\\(?:[dt]?frac|sqrt|left|\()))
  | (?P<q>sqrt(?<!\w....)(?=[({{]))
  # What is only there for the eye: emphasis, currencies, tags, colours, table cells, quotes.
  | (?P<d>__?(?:(?<![^\W_]_)(?<![^\W_]__)(?=[0-9$(\\.])
      | (?:(?<=[0-9)%}}]_)|(?<=[0-9)%}}]__))(?=[.,;:!?)\n]|\Z|[ ](?![-+*/=])))
    | (?:Rs\.(?<!\w...)[ ]?|US(?<!\w..)|[A-Z]{{3}}(?<!\w...)[ ]|[CA](?<!\w.))(?=\$[0-9])
    | (?:Rs\.|USD|EUR|INR)(?<!\w...)[ ]?(?=[0-9]))
  | (?P<w>[^\W\d][\w']*+(?:-(?!(?:x|plus|minus|times)\b)[^\W\d][\w']*+)*+)
  | (?P<e>\*\*\*|</?(?:b|i|u|em|strong|span|code|mark|small)>|\\(?:text)?color\{{[a-z]{{1,20}}\}}
    | \|(?<=[ ].)[ ](?==)|\*(?<==[ ].)(?=\$?[0-9])|"(?=\$?[0-9])
    | "(?<=[0-9].)[ ](?==|(?i:{_BEHIND})(?!\w))
    | [,?](?=[ ](?:=|(?i:{_BEHIND})(?!\w))))
  | (?P<r>\n[ \t&$\n]{{0,20}}+(?==|~|\\approx)
    | (?:(?<=[=+/-])|(?<=[^*]\*))[ ]?\n(?=[ \t$]{{0,8}}[0-9.(\\]))
  | (?P<h>(?<=[0-9])-[A-Za-z]{{2,20}}+(?:-[a-z]{{1,20}}+){{0,4}}+(?![0-9]))
  | (?P<p>\*\*|={{1,3}}(?![=>])|=>|[<>!:+*/-]=|->|\.\.\.|…)
  | (?P<s>\S|\n)
    )|[ ]++
    """,
    re.VERBOSE,
)
_PROPER: Final = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]*+)(?:\.[0-9]++)?+")

_COMMANDS: Final = {
    **dict.fromkeys(("times", "cdot", "ast"), (SIGN, "*")),
    "div": (SIGN, "/"),
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), (FRACTION, "")),
    **dict.fromkeys(("binom", "dbinom", "tbinom"), (FRACTION, BINOMIAL)),
    **dict.fromkeys(("approx", "simeq"), (RELATION, APPROXIMATELY)),
    **dict.fromkeys(("eq", "equals", "="), (RELATION, "=")),
    "sqrt": (ROOT, ""),
    "log": (ROOT, LOGARITHM),
    **dict.fromkeys(("lbrack", "lparen"), (OPEN, "(")),
    **dict.fromkeys(("rbrack", "rparen"), (CLOSE, ")")),
    **dict.fromkeys(("circ", "degree"), (WORDS, "degrees")),
    **dict.fromkeys(("Rightarrow", "to", "implies", "rightarrow"), (RELATION, ASIDE)),
    **dict.fromkeys(("therefore", "because", "item", "begin", "end", "newline"), (BREAK, "")),
}
_SILENT: Final = word_set(
    "left right big Big bigg Bigg bigl bigr displaystyle textstyle quad qquad boxed fbox mathbf "
    "textbf boldsymbol mathbb bf rm cr hline underline emph large Large text textrm mathrm mbox "
    "textit mathit textsf $ , ; ! : ( ) [ ] & # _"
) | {" "}
_SYMBOLS: Final = {
    **{c: (SIGN, c) for c in "+-*/^"},
    "=": (RELATION, "="),
    "~": (RELATION, APPROXIMATELY),
    **{c: (OPEN, c) for c in "([{"},
    **{c: (CLOSE, c) for c in ")]}"},
    "%": (PERCENT, "%"),
    **{c: (BREAK, c) for c in '.,;:\n"|<>'},
    "?": (QUESTION, "?"),
    "√": (ROOT, ""),
    ARROW: (RELATION, ASIDE),
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
_VERB_KEYS: Final = frozenset(_VERBS.split("|"))
_ASIDE_KEYS: Final = frozenset(_ASIDES.replace("\\", "").split("|"))
KEY_STARTS: Final = frozenset(
    re.split(r"[ .\\]", key)[0] for key in (*_KEYWORDS, *_VERBS.split("|"), *_ASIDES.split("|"))
)
_DROPPED: Final = frozenset("$`&")

_SUPERSCRIPTS: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def scan(text: str, start: int, end: int) -> list[Token]:
    """Tokenize ``text[start:end]`` in linear time. The text must already be folded (see `fold`)."""
    tokens: list[Token] = []
    add = tokens.append
    begin, stop = -1, 0  # span of the words being joined into one token
    skip = 0  # end of a key that spans several words
    for match in _TOKEN.finditer(text, start, end):
        index, group = match.lastindex, match.lastgroup
        if index is None:
            continue
        place, stopped = match.span(index)
        piece = text[place:stopped]
        if group == "f" or group == "w":
            if place >= skip and KEY_STARTS.isdisjoint(piece.lower().split()):
                # Prose that does not contain the first word of any key is taken in one piece.
                if begin < 0 or place != stop + 1 or text[stop] != " ":
                    if begin >= 0:
                        add(_token((WORDS, text[begin:stop], begin, stop)))
                    begin = place
                stop = stopped - (piece[-1] == " ")
                continue
            for word in piece.split():
                at, place = place, place + len(word) + 1
                if at < skip:
                    continue
                key = _key(text, at, end) if word.lower() in KEY_STARTS else None
                if key is None and begin >= 0 and at == stop + 1 and text[stop] == " ":
                    stop = at + len(word)
                    continue
                if begin >= 0:
                    add(_token((WORDS, text[begin:stop], begin, stop)))
                begin, stop = at, at + len(word)
                if key is not None:
                    begin, skip = -1, key.end
                    add(key)
            continue
        if place < skip:
            continue
        if begin >= 0:
            add(_token((WORDS, text[begin:stop], begin, stop)))
            begin = -1
        if group == "n":
            add(_token((NUMBER, piece, place, stopped)))
            continue
        read = _SYMBOLS.get(piece) if group == "i" or group == "s" else None
        if read is None and piece not in _DROPPED:
            read = _read(group, piece, text, place)
        if read is not None:
            add(_token((*read, place, stopped)))
            if group == "v" and read[1] == "^":
                tokens += _raised(piece, place, stopped)
    if begin >= 0:
        add(_token((WORDS, text[begin:stop], begin, stop)))
    return tokens


def _raised(piece: str, place: int, stopped: int) -> list[Token]:
    """Return the tokens of a superscript after its power sign, such as ``⁻¹``."""
    digits = piece.translate(_SUPERSCRIPTS)
    sign = [Token(SIGN, "-", place, stopped)] if digits[0] == "-" else []
    return [*sign, Token(NUMBER, digits.lstrip("-"), place, stopped)]


def _key(text: str, place: int, end: int) -> Token | None:
    """Return the keyword at ``place``, which can span several words, or None if there is none."""
    if place > 0 and (text[place - 1].isalnum() or text[place - 1] == "_"):
        return None
    match = _KEY.match(text, place, end)
    if match is None:
        return None
    key = match.group().lower()
    kind, meaning = _KEYWORDS.get(key, (RELATION, ASIDE if key in _ASIDE_KEYS else VERB))
    return Token(kind, meaning, place, match.end())


def _read(group: str | None, piece: str, text: str, place: int) -> tuple[str, str] | None:
    """Return the kind and meaning of a token other than a number or word, or None to skip it."""
    if group in ("s", "v"):
        if group == "v" and ord(piece[0]) in _SUPERSCRIPTS:
            return SIGN, "^"
        if piece == "°":
            return WORDS, "degrees"
        return (VULGAR, piece) if vulgar(piece) is not None else (UNKNOWN, piece)
    if group == "x":
        return SIGN, "*"
    if group == "h":
        return WORDS, piece
    if group == "c":
        return _command(piece[1:])
    if group == "q":
        return ROOT, ""
    if group == "t":
        return _within_text(" ".join(piece[piece.index("{") + 1 : -1].split()))
    if group == "p":
        return _pair(piece, text, place)
    return None  # decoration, or a line break within an equation


def _within_text(words: str) -> tuple[str, str] | None:
    r"""Return the kind and meaning of ``\text{words}``, which may be an operator or a verb."""
    if not words:
        return None
    key = words.lower()
    if key in _KEYWORDS and key != "x":
        return _KEYWORDS[key]
    return (RELATION, VERB) if key in _VERB_KEYS else (WORDS, words)


def _command(name: str) -> tuple[str, str] | None:
    if name[:1] == "\\":
        return None if len(name) > 1 else (BREAK, "")
    if name in ("*", "-", "+", "%", "{", "}"):
        return _SYMBOLS[name]
    return None if name in _SILENT else _COMMANDS.get(name, (UNKNOWN, name))


def _pair(piece: str, text: str, place: int) -> tuple[str, str] | None:
    """Return the kind and meaning of a multi-character sign, or None to skip it.

    ``**`` is a power between operands, and Markdown's bold anywhere else.
    """
    before = text[max(0, place - 1) : place]
    if piece in ("...", "…") and before.isdigit():
        return None  # 8.333...%
    if piece in ("=>", "->"):
        return RELATION, ASIDE
    if piece[0] == "=":
        return RELATION, "="
    if piece != "**":
        return UNKNOWN, piece
    after = text[place + 2 : place + 3]
    tight = (before.isdigit() or before == ")") and (after.isdigit() or after == "(")
    loose = before == " " == after and text[max(0, place - 2) : place - 1].isdigit()
    return (SIGN, "^") if tight or loose else None


def number(text: str) -> tuple[Rational, int] | None:
    """Return the value and the number of decimals of a NUMBER token's text.

    The result is None if the text is too long or ambiguous: ``1,200`` is a number, but ``1,5``
    could be a list or have a decimal comma, and ``1.2.3`` is a version.
    """
    if len(text) > MAX_DIGITS or not text.isascii():
        return None  # isdigit() accepts "❶" and "²", but int() rejects them
    if text.isdigit():
        # 0900 is a time; a bare 000 belongs to the number before it
        return (int(text), 0) if text[0] != "0" or len(text) == 1 else None
    return _with_signs(text)


@lru_cache(maxsize=2048)
def _with_signs(text: str) -> tuple[Rational, int] | None:
    text = text.replace("{,}", ",").replace("\\,", ",")
    if not text or not _PROPER.fullmatch(text):
        return None
    if text[0] == "0" and text[1:2].isdigit():
        return None
    whole, _, decimals = text.replace(",", "").partition(".")
    if not decimals.strip("0"):
        return int(whole or "0"), len(decimals)  # 6.00, because ints are several times faster
    return Fraction(int(whole + decimals), 10 ** len(decimals)), len(decimals)
