"""Reasons not to trust an equation: anything next to a side that is not understood.

A factor, a function, a bar, an unknown or calculating words each raise a doubt. A doubtful equation
is held against no one, unless the doubt comes only from words (`SPOKEN`) and the text continues
with the true value.
"""

import re
import unicodedata
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic import notation as t
from grpo_guard.content.arithmetic.numbers import magnitude
from grpo_guard.content.arithmetic.reader import Reader
from grpo_guard.content.arithmetic.side import ARITHMETIC, Side
from grpo_guard.content.arithmetic.units import (
    ATTACHED,
    FUNCTIONS,
    SPOILING,
    STOPPING,
    is_plain,
    sizes_of,
)
from grpo_guard.content.word_set import word_set

# Words after a stated number that make it part of another statement.
_COMPARING: Final = word_set(
    "more less fewer greater bigger larger smaller times higher lower out percent away short"
)
# Words before a calculation that are part of it: "the average of 4 + 6 = 5".
_CALCULATING: Final = word_set(
    "root roots square squared squares cube cubed cubes digit digits half twice double doubled "
    "doubling triple thrice third thirds quarter quarters mode remainder mod modulo modulus gcd "
    "lcm gcf hcf factors divisors divisor multiples log ln logarithm sin sine cos cosine tan "
    "tangent floor ceil ceiling rounded absolute negative opposite inverse reciprocal factorial "
    "choose permutations combinations binary hexadecimal octal than sqrt abs exp percent variance "
    "deviation determinant norm"
)
_JOINING: Final = word_set("of at by per with for each costing times")
_AVERAGING: Final = word_set("average mean median")
_SMALL: Final = word_set("of the a an both is are was these those all")
SUPPOSING: Final = word_set("not if suppose supposing assume assuming whether unless")
# A statement begins after these words, so that a verb can be its relation: "so 2 + 2 is 5".
_OPENING: Final = word_set(
    "so thus then hence therefore because since that and but know as total get multiplying "
    "adding dividing subtracting now means is are"
)
_LABELS: Final = word_set(
    "day week month year step part question problem case round item stage phase chapter level "
    "grade figure option number section exercise example hour minute"
)
_YES: Final = re.compile(r"\?[\s*\"')]{0,4}(?i:yes|yeah|correct|indeed|right|it is|true)\b")
_RELATIONS: Final = frozenset("≠≤≥≦≧⩽⩾∎∴∵∈∉⟺⇔↔↦⟹✓")
_RELATING: Final = word_set("ne neq le leq ge geq lt gt leqslant geqslant")
_CLOCK: Final = word_set("am pm o'clock clock a.m p.m")
_MONTHS: Final = word_set(
    "january february march april may june july august september october november december"
)
_OPERANDS: Final = frozenset({t.NUMBER, t.CLOSE, t.PERCENT, t.VULGAR})
_NO_OPERANDS: Final = frozenset({t.WORDS, t.BREAK, t.CLOSE, t.RELATION, t.QUESTION, t.UNKNOWN})
_MOST_LOOKED_BACK: Final = 8
_ROUNDED_TO: Final = 200  # a stated result can be off by one part in this many
_LINE_BEFORE: Final = 400
_LINE_END: Final = re.compile(r"(?:[ \t$&]|\\q?quad|\\\\)*\n[ \t]{0,40}\Z")
# Doubts from words alone, which any writer could add; here the value flow decides.
SPOKEN: Final = frozenset(
    {
        "words that calculate",
        "a verb that may refer to something else",
        "another number after it",
        "a question",
        "a label",
    }
)


class Doubts:
    """Looks for reasons to doubt the equations in a segment.

    Args:
        text: The completion, folded.
        reader: The reader of the segment's tokens.
    """

    def __init__(self, text: str, reader: Reader) -> None:
        self.text = text
        self.reader = reader
        self.tokens = reader.tokens
        self.kinds = reader.kinds

    def doubt(self, left: Side, right: Side, chained: bool, verbal: bool) -> str:
        """Return why two sides are not fully understood, or an empty string if they are."""
        counted = [unit.lower().split() for unit in (*left.units, *right.units)]
        letters = left.letters | right.letters
        measured = letters <= ATTACHED and any(len(words[-1]) > 1 for words in counted)
        if (left.degree != right.degree or len(letters) > 1) and not measured:
            return "an unknown"
        if any(word in _CLOCK for words in counted for word in words):
            return "a time"
        if any(words[0] in _MONTHS for words in counted):
            return "a date"
        if right.operators and _have_other_units(left, right):
            return "units that differ"
        before = "" if chained else self._doubt_before(left, right, verbal)
        return before or self._doubt_after(right, verbal)

    def words_before(self, at: int) -> list[str]:
        """Return the last words before token ``at`` in its clause, in order and in lower case."""
        words: list[str] = []
        while at > 0 and self.tokens[at - 1].kind in (t.WORDS, t.OF) and len(words) < 40:
            at -= 1
            words = self.tokens[at].text[-200:].lower().split() + words
        return words[-_MOST_LOOKED_BACK:]

    def is_bare(self, at: int) -> bool:
        """Whether token ``at`` begins a clause, possibly after a word such as "so"."""
        if at == 0 or self.kinds[at - 1] == t.BREAK:
            return True
        words = self.words_before(at)
        return bool(words) and (words[-1] in _OPENING or words[-2:] == ["answer", "to"])

    def _doubt_before(self, left: Side, right: Side, verbal: bool) -> str:
        """Return the doubt raised by what is to the left of a chain, or an empty string."""
        at = left.at
        signed = self.tokens[at].kind == t.SIGN
        if signed and (at == 0 or self.tokens[at - 1].text != "="):
            left.open.add("bullet")
        if at == 0 and self._is_continued():
            return "a line before it"
        inside = self._doubt_inside(at)
        if at == 0 or inside:
            return inside
        before, first = self.tokens[at - 1], self.tokens[at]
        touches = before.end == first.start
        kind = before.kind
        if verbal and not self.is_bare(at):
            return "a verb that may refer to something else"
        if kind in (t.WORDS, t.OF):
            return "an unknown" if signed else self._words_doubt(left, touches)
        if kind == t.BREAK:
            return self._break_before(left, right, before.text)
        if kind == t.SIGN:
            return self._sign_before(at, before.text, touches)
        if kind == t.UNKNOWN:
            sign = not touches and not before.text.isalnum()
            sign &= self._opens(at - 1) or not "\u25a0" <= before.text[0] <= "\u25ff"  # □ + 3
            shown = sign and unicodedata.category(before.text[0]) in ("So", "Sk", "Po")
            return "" if shown else "an unknown sign before it"
        if kind == t.QUESTION and self.kinds[at - 2] == t.SIGN:
            return "an unreadable operand"  # "15 - ?(3 + 4) = 8"
        known = kind in (t.RELATION, t.OPEN, t.QUESTION)
        return "" if known or (kind == t.CLOSE and self._is_enumerator(at - 1)) else "a factor"

    def _words_doubt(self, left: Side, touches: bool) -> str:
        words, first = self.words_before(left.at), self.tokens[left.at]
        phrase, _, last = self.tokens[left.at - 1].text.rpartition(" ")
        letter = len(last) == 1 and not (last == "a" and phrase)  # "it has a 3 + 4 = 7 minute run"
        # "b \\left(" is a product despite the space.
        between = self.text[self.tokens[left.at - 1].end : first.start]
        joined = touches or not between or ("\\" in between and first.kind == t.OPEN)
        plain = is_plain(last) or last.lower() in FUNCTIONS
        if joined or letter or not plain:
            return "a function or an identifier"
        start = left.at
        while start > 0 and self.kinds[start - 1] in (t.WORDS, t.OF):
            start -= 1
        operated = self.kinds[start - 1] == t.SIGN and self.kinds[start - 2] in _OPERANDS
        if operated and not self._is_dash(start - 1):
            return self._sign_before(start, self.tokens[start - 1].text, False)
        joins = (len(words) < 4 and words[-1] in _JOINING and "total" not in words) or words == [
            "and"
        ]
        if self.kinds[start - 1] == t.NUMBER and joins:
            return "a factor in words"  # "3 bags of 4 apples + 2 apples", "3 and 4 + 5"
        named = next((word for word in reversed(words) if word not in _SMALL), "")
        if named in _CALCULATING | FUNCTIONS or (named in _AVERAGING and "+" in left.operators):
            return "words that calculate"
        return "a label" if words[-1] in _LABELS else ""  # "Day 1 - 20 + 30 = 50"

    def _break_before(self, left: Side, right: Side, sign: str) -> str:
        at = left.at
        earlier, first = self.tokens[at - 2] if at > 1 else None, self.tokens[at]
        before = self.tokens[at - 1]
        if sign == "|":
            return "" if self._is_table(at) else "a bar"
        if sign in "<>" or earlier is None:
            return ""
        if earlier.kind == t.NUMBER and earlier.end == before.start:
            touches = before.end == first.start
            group = not touches and self._holds_as_one_number(left, right, sign)
            labelled = sign == ":" and not _LABELS.isdisjoint(self.words_before(at - 2)[-1:])
            return "a time, a ratio or a list" if (touches or group) and not labelled else ""
        return ""

    def _holds_as_one_number(self, left: Side, right: Side, sign: str) -> bool:
        """Whether the left side's first number begins before a sign: ``14, 400 / 80 = 180``.

        This counts only if the equation then holds. Otherwise the sign ends a sentence or clause,
        as in ``5 * 23 = 115. 114 + 2 = 117``, and an author could put such a sign before any false
        equation.
        """
        at, stated = left.at, [right.value]
        if sign not in (",", ".") or not self._is_group(at):
            return False
        shift, size, first = 0, 1000, at
        while first >= 2 and self.tokens[first - 1].text == sign and size < 10**15:
            first -= 2
            text = self.tokens[first].text
            # Longer digit strings are not part of a number here, and int() limits their length.
            if not (self.kinds[first] == t.NUMBER and text.isdigit() and len(text) <= 15):
                return False
            shift, size = shift + int(self.tokens[first].text) * size, size * 1000
            if not self._is_group(first):
                break
        if self.kinds[right.end] == t.BREAK and self._is_group(right.end + 1):
            stated.append((right.value or 0) * 1000 + int(self.tokens[right.end + 1].text))
        value = self.reader.again(left, ARITHMETIC, {at: shift})
        if value is not None and any(
            one is not None and _ROUNDED_TO * magnitude(value - one) <= magnitude(value)
            for one in stated
        ):
            return True
        # "0. 125 * 8 = 1". The values must match exactly, because "115. 114 + 2" is nearly 117.
        digits = int(self.tokens[at].text)
        decimals = int(self.tokens[at - 2].text) + Fraction(digits, 1000) - digits
        return sign == "." and self.reader.again(left, ARITHMETIC, {at: decimals}) == right.value

    def _is_group(self, at: int) -> bool:
        """Whether a token is a group of three digits, as in the thousands of a number."""
        text = self.tokens[at].text if self.kinds[at] == t.NUMBER else ""
        return len(text) == 3 and text.isdigit()

    def _sign_before(self, at: int, sign: str, touches: bool) -> str:
        """Return the doubt raised by a sign, or an empty string for the bullet of a list item."""
        first = at - 1
        if self.kinds[first - 1] == t.SIGN and sign in "/*" and self.tokens[first - 1].text == "/":
            first, sign, touches = first - 1, "*", False  # "//" and "/*" begin comments
        opens_line = first == 0 or (
            self.tokens[first - 1].kind == t.BREAK and self.tokens[first - 1].text in "\n;.:>"
        )
        bullet = opens_line and sign in ("-", "*", "+") and (not touches or sign == "*")
        return "" if bullet else "an unreadable operand"

    def _opens(self, at: int) -> bool:
        """Whether a clause begins with token ``at``."""
        return at == 0 or self.kinds[at - 1] == t.BREAK

    def _is_dash(self, at: int) -> bool:
        """Whether a sign is a dash between spaces (``Step 2 - add 3 + 4``) or possibly a word."""
        token, before, after = self.tokens[at], self.tokens[at - 1], self.tokens[at + 1]
        if token.text in (t.LETTER_X, t.TIMES):
            return True  # "the values of X: 3 + 4"
        return token.text == "-" and before.end < token.start and token.end < after.start

    def _is_continued(self) -> bool:
        r"""Whether the segment continues the previous line.

        Examples are ``{2}`` after ``\frac{1}``, and ``- 3 + 4`` after ``12`` outside a list.
        """
        first = self.tokens[0]
        above = self.text[max(0, first.start - _LINE_BEFORE) : first.start].rstrip(" \t$&")
        if above[-1:] != "\n" or first.text not in ("{", "+", "-"):
            return False
        above = _LINE_END.sub("", above)
        if first.text == "{":
            return above.endswith("}")
        line = above.rpartition("\n")[2].lstrip(" \t$&\\[(=")
        return above[-1:].isdigit() and line[:1] not in ("", "+", "-", "*", "•")

    def _is_enumerator(self, at: int) -> bool:
        """Whether a closing bracket ends the enumerator of a list item, as in ``(a) 5 + 3``."""
        command = at > 2 and self.kinds[at - 3] == t.BREAK and not self.tokens[at - 3].text
        if self.tokens[at].text == "}" and not command:
            return False
        return self.kinds[at - 1] in (t.WORDS, t.NUMBER) and (
            at < 2 or (self.kinds[at - 2] == t.OPEN and self.kinds[at - 3] in (t.OUTSIDE, t.BREAK))
        )

    def _is_table(self, at: int) -> bool:
        line = self.text.rfind("\n", 0, self.tokens[at].start) + 1
        return self.text[line : line + 20].lstrip().startswith("|")

    def _doubt_inside(self, at: int) -> str:
        """Return a reason for doubt if what precedes the bracket around the chain owns it."""
        opened = self.reader.enclosing.get(at)
        if opened is None or opened == 0:
            return ""
        before, bracket = self.tokens[opened - 1], self.tokens[opened]
        apart = before.end < bracket.start
        if before.kind in (t.WORDS, t.BREAK, t.RELATION, t.QUESTION, t.OPEN, t.SIGN):
            function = before.kind in (t.WORDS, t.SIGN) and not apart
            return "a function" if function and bracket.text != "{" else ""
        if bracket.text == "{" and before.kind in (t.UNKNOWN, t.CLOSE):
            return "a command"  # "base (2) \\boxed{1+1=10}"
        return "" if apart and before.kind in (t.NUMBER, t.CLOSE, t.PERCENT) else "a factor"

    def _doubt_after(self, right: Side, verbal: bool) -> str:
        at = right.end
        if right.dangling:
            return "an operator without a number after it"
        if at >= self.reader.count:
            return ""
        token, before = self.tokens[at], self.tokens[at - 1]
        touches = token.start == before.end
        following = self.tokens[at + 1] if at + 1 < self.reader.count else None
        if token.kind == t.QUESTION:
            return "" if _YES.match(self.text, token.start) else "a question"
        if token.kind == t.UNKNOWN:
            kind = unicodedata.category(token.text[0])
            shown = kind in ("So", "Po", "Pf") or token.text[0] in _RELATIONS
            # "!=", "<=", "\\neq": another statement begins
            known = token.text in _RELATING or (len(token.text) > 1 and not token.text.isalpha())
            apart = not touches or token.text in "!…" or token.text == "✓"
            return "" if known or (shown and apart) else "an unknown sign after it"
        if token.kind == t.WORDS:
            return self._words_after(right, verbal, touches)
        if token.kind in (t.NUMBER, t.VULGAR, t.PERCENT, t.ROOT):
            if before.kind != t.WORDS:
                return "another number after it"
            return "a second measure" if self._continues_in_smaller_units(right) else ""
        if token.kind == t.OPEN:
            return "a factor after it" if touches or token.text == "{" else ""
        if token.kind == t.BREAK and touches and following is not None:
            if following.kind == t.NUMBER and following.start == token.end:
                return "a time, a ratio or a list"
            if token.text == "|" and not self._is_table(at):
                return "a bar"
        if token.kind == t.SIGN:
            return self._sign_after(at, verbal)
        return ""

    def _sign_after(self, at: int, verbal: bool) -> str:
        token, after = self.tokens[at], self.tokens[at + 1 : at + 2]
        apart = not after or after[0].start > token.end
        ends = not after or after[0].kind in _NO_OPERANDS
        if token.text in ("*", t.TIMES) and ends:
            return ""  # the end of Markdown's emphasis, "= 5 times."
        if token.text == "-" and ends and apart and not verbal:
            return ""  # a dash
        return "an operator after it"

    def _words_after(self, right: Side, verbal: bool, touches: bool) -> str:
        phrase = self.tokens[right.end].text[:200]
        words, first = phrase.lower().split()[:4], phrase.partition(" ")[0]
        if touches and first in right.letters and STOPPING.isdisjoint(words[1:2]):
            return ""  # "5Z for the side Z": the letter is counted, the rest is prose
        article = first in ("a", "I") and phrase != first
        letter = not article if len(first) == 1 else not is_plain(first)
        if (touches and words[0] not in ATTACHED) or letter:
            return "an unknown after it"
        if words[0] in SPOILING and words[0] != "remainder":
            return "words that calculate"
        if verbal and words[0] in _COMPARING:
            return "a comparison"
        return "a second measure" if self._continues_in_smaller_units(right) else ""

    def _continues_in_smaller_units(self, right: Side) -> bool:
        """Whether a result continues in another unit, as in ``= 2 hours (and) 30 minutes``."""
        at = right.end
        at += self.kinds[at] == t.WORDS and self.tokens[at].text == "and"
        if not right.units or self.kinds[at] != t.NUMBER or self.kinds[at + 1] != t.WORDS:
            return False
        first = right.units[-1].rpartition(" ")[2]
        second = self.tokens[at + 1].text[:40].partition(" ")[0]
        ahead = {dimension for dimension, _ in sizes_of(first)}
        return any(dimension in ahead for dimension, _ in sizes_of(second))


def _have_other_units(left: Side, right: Side) -> bool:
    """Whether two sides share no unit, as in an exchange rate: ``5 yaps * 14 = 3 baps * 14``."""
    named = [
        {word[:4].lower() for unit in side.units for word in unit.split()} - {"per", "powe"}
        for side in (left, right)
    ]
    return bool(named[0] and named[1]) and named[0].isdisjoint(named[1])
