"""Parse one side of an equation in a single pass: operands, operators, units and value."""

from typing import Final

from grpo_guard.content.arithmetic import notation as t
from grpo_guard.content.arithmetic.characters import vulgar
from grpo_guard.content.arithmetic.literals import (
    as_written,
    is_next_thousand,
    literal,
    part_behind,
    proper,
)
from grpo_guard.content.arithmetic.notation import MAX_DIGITS, number
from grpo_guard.content.arithmetic.numbers import (
    Rational,
    choose,
    divide,
    logarithm,
    magnitude,
    root,
)
from grpo_guard.content.arithmetic.side import Level, Unread
from grpo_guard.content.arithmetic.suffixes import Suffixes
from grpo_guard.content.arithmetic.units import is_plain

MAX_DEPTH: Final = 24
_BEHIND_EMPHASIS: Final = frozenset({t.WORDS, t.OUTSIDE, t.BREAK, t.CLOSE, t.RELATION, t.QUESTION})
_PARTS: Final = frozenset({t.VULGAR, t.FRACTION, t.NUMBER, t.WORDS})
STARTS: Final = frozenset({t.NUMBER, t.OPEN, t.FRACTION, t.VULGAR, t.ROOT})
"""Kinds of tokens that can begin an operand."""
ENDS: Final = frozenset({t.RELATION, t.BREAK, t.CLOSE, t.OUTSIDE})
"""Kinds of tokens that always end a side."""
_MEANING: Final = {t.LETTER_X: "*", t.TIMES: "*"}  # all other signs mean themselves
_SCIENTIFIC: Final = ["*", "^"]  # 3.0 * 10^8
_SUMS: Final = frozenset("+-")
_PRODUCTS: Final = frozenset("*/jf")


class Parse(Suffixes):
    """A single pass over the operands and operators of a side, under one reading."""

    def level(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        """Parse the operands and operators that begin at token ``at``; return (value, end)."""
        read = Level()
        start = at
        if depth == 0 and "bullet" in self.reading:
            at += 1
        kinds = self.kinds
        at = lone = self._operand(read, at, end, depth)
        while at < end:
            if kinds[at] == t.SIGN and kinds[at + 1] == t.NUMBER:
                sign, after = _MEANING.get(self.tokens[at].text, self.tokens[at].text), at + 1
            else:
                sign, after = self._sign(read, at, end)
            if not sign:
                break
            try:
                at = self._operand(read, after, end, depth)
            except Unread:
                read.trim()
                self.side.dangling |= sign not in "fj"
                break
            read.operators.append(sign)
        if depth == 0:
            self.side.first = read.values[0]
            if not read.operators or read.operators == _SCIENTIFIC:
                self._note_number(start, lone, read)
        self.side.operators += read.operators
        if len(read.operators) > 1:  # a single operator leaves no reading open
            if not (_SUMS.isdisjoint(read.operators) or _PRODUCTS.isdisjoint(read.operators)):
                self.side.open.add("order")
            if "/" in read.operators:
                # In 6.2 * 10^-21 / 1.6 * 10^-19, each product is one number.
                joins = "j" in read.operators or "^" in read.operators
                self.side.open |= {"tight"} if joins else set()
                self.side.open |= {"stack"} if read.operators.count("/") > 1 else set()
        degree = read.degree() if read.degrees else 0
        if degree is None and depth:
            raise Unread
        if degree is None:
            # Not Unread, or a long side would be parsed again from each of its tokens.
            self.undefined = True
        self.side.degree = degree or 0
        return self.defined(read.value, self.reading), at

    def _note_number(self, start: int, lone: int, read: Level) -> None:
        """Record the number of a side that is a plain number, or a number times a power of ten."""
        side, tokens = self.side, self.tokens
        alone = not (read.operators or side.operators)
        if self.mixed or not (alone or read.operators):
            return
        at = start
        while at < lone and self.kinds[at] in (t.SIGN, t.OPEN):
            at += 1
        plain = at < lone and self.kinds[at] == t.NUMBER
        written = as_written(tokens[at].text) if plain else None
        if written is None:
            return
        if alone:
            last = at
            while last + 1 < lone and is_next_thousand(self.tokens, last + 1):
                last += 1
            side.number = tokens[at].start, tokens[last].end
            side.decimals = written[1]
            side.literal = written[0] if last == at else magnitude(read.values[0])
        elif read.values[1] == 10:
            side.decimals, side.literal = written[1], written[0]

    def _sign(self, read: Level, at: int, end: int) -> tuple[str, int]:
        """Return the operator at ``at`` ("" if none) and the start of its right operand."""
        token, before = self.tokens[at], self.tokens[at - 1]
        if token.kind == t.SIGN:
            if self._is_separator(at, end):
                return "", at
            after = self.tokens[at + 1] if at + 1 < len(self.tokens) else token
            if token.text == t.LETTER_X and after.kind == t.OPEN and after.start == token.end:
                self.side.dangling = True  # x(0)
                return "", at
            # "2x - 3" with a letter x, "* + 1"
            twice = token.text != "+" and after.kind == t.SIGN and after is not token
            if twice and (token.text == t.LETTER_X or after.text == "+"):
                self.side.dangling = True
                return "", at
            return _MEANING.get(token.text, token.text), at + 1
        if token.kind == t.OF:
            # "a 5% discount for each of the 12 - 10"
            each = before.kind == t.WORDS and before.text.endswith(" each")
            part = not each and (
                len(read.values) - 1 in read.percent
                or read.operators[-1:] == ["/"]
                or before.kind in (t.CLOSE, t.VULGAR)
            )
            article = self.kinds[at + 1] == t.WORDS and self.tokens[at + 1].text.lower() in (
                "the",
                "those",
                "these",
            )
            return ("f", at + 1 + article) if part else ("", at)
        touches = token.start == before.end
        if token.kind == t.OPEN and token.text != "{" and before.kind != t.WORDS:
            return ("j", at) if touches or self._is_calculation(at, end) else ("", at)
        if token.kind in (t.FRACTION, t.ROOT) and before.kind in (t.CLOSE, t.NUMBER, t.SIGN):
            return "j", at
        return "", at

    def _is_calculation(self, at: int, end: int) -> bool:
        """Whether a bracket set apart from the preceding number is a factor, not a remark."""
        close = self.closing.get(at, -1)
        kinds = [token.kind for token in self.tokens[at + 1 : min(close, at + 40)]]
        if kinds == [t.NUMBER, t.PERCENT]:
            return False  # "1/8 (12.5 %)" gives the same value twice
        inside = set(kinds)
        known = {t.NUMBER, t.SIGN, t.OPEN, t.CLOSE, t.FRACTION, t.ROOT, t.VULGAR, t.PERCENT}
        return at < close < end and inside <= known

    def _is_separator(self, at: int, end: int) -> bool:
        """Whether a sign is a dash between clauses, the end of Markdown emphasis, or an adverb."""
        token, following = self.tokens[at], self.kinds[at + 1]
        spaced = token.start > self.tokens[at - 1].end
        if token.text == "-":
            apart = at + 1 >= len(self.tokens) or self.tokens[at + 1].start > token.end
            ends = following == t.OUTSIDE or self._is_clause_end(at + 1) or self._is_prose(at + 1)
            return spaced and apart and ends
        if token.text == t.TIMES:
            return following not in STARTS and following != t.SIGN
        return token.text == "*" and following in _BEHIND_EMPHASIS and not spaced

    def _is_prose(self, at: int) -> bool:
        """Whether a token is prose rather than a variable: ``12 - c`` is a calculation."""
        head = self.tokens[at].text.partition(" ")[0] if self.kinds[at] == t.WORDS else ""
        return len(head) > 1 and is_plain(head)

    def _is_clause_end(self, at: int) -> bool:
        return self.kinds[at] == t.BREAK and self.tokens[at].text in ".,;:\n"

    def _operand(self, read: Level, at: int, end: int, depth: int) -> int:
        """Parse one operand with its sign and suffixes, and add it to ``read``; return its end."""
        kinds, negative = self.kinds, False
        if at < end and kinds[at] == t.SIGN:
            at, negative = self._signs(at, end)
        if at >= end:
            raise Unread
        behind = kinds[at + 1] if at + 1 < end else t.OUTSIDE
        part = False
        # Most numbers have neither a unit nor any other suffix.
        bare = behind in ENDS or (behind == t.SIGN and kinds[at + 2] == t.NUMBER)
        if bare and kinds[at] == t.NUMBER:
            value, after = self._literal(at)[0], at + 1
            if self.shift:
                value += self.shift.get(at, 0)
        else:
            side, this = self.side, len(read.values)
            side.degree = 0
            value, after, part = self._plain(at, end, depth)
            if side.degree:
                read.degrees[this] = side.degree
            value, after = self.suffix(read, value, after, end)
        if negative:
            read.negative.add(len(read.values))
        if part and kinds[after] == t.OF:
            read.percent.add(len(read.values))
        read.values.append(-value if negative else value)
        return after

    def _signs(self, at: int, end: int) -> tuple[int, bool]:
        """Skip at most two signs in front of an operand; return (end, negative)."""
        negative, first = False, at
        while at < end and self.kinds[at] == t.SIGN and self.tokens[at].text in ("+", "-"):
            negative ^= self.tokens[at].text == "-"
            at += 1
            if at - first > 2:
                raise Unread
        return at, negative

    def _plain(self, at: int, end: int, depth: int) -> tuple[Rational, int, bool]:
        """Parse a bare operand; return (value, end, is_fraction)."""
        kind = self.tokens[at].kind
        if kind == t.NUMBER:
            return (*self._number(at, end, depth), False)
        if kind == t.VULGAR:
            found = vulgar(self.tokens[at].text)
            if found is None:
                raise Unread
            return found, at + 1, True
        if depth < MAX_DEPTH:
            if kind == t.OPEN:
                return (*self._group(at, end, depth), False)
            if kind == t.FRACTION:
                return (*self._fraction(at, end, depth), True)
            if kind == t.ROOT:
                return (*self._root(at, end, depth), False)
        raise Unread

    def _number(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        begin = at
        value, decimals = self._literal(at)
        at += 1
        while at < end and decimals == 0 and is_next_thousand(self.tokens, at):
            value = value * 1000 + int(self.tokens[at].text)
            at += 1
        value += self.shift.get(begin, 0)
        if at < end and decimals == 0 and self.kinds[at] in _PARTS:
            return self._mixed(value, at, end)
        return value, at

    def _literal(self, at: int) -> tuple[Rational, int]:
        text = self.tokens[at].text
        if text.isdigit() and text[0] != "0" and len(text) <= MAX_DIGITS:
            return int(text), 0
        value, decimals, ambiguous = literal(text, "comma" in self.reading)
        if ambiguous:
            self.side.open.add("comma")
        if decimals:
            self.side.literals.append((at, decimals))
        return value, decimals

    def _mixed(self, value: Rational, at: int, end: int) -> tuple[Rational, int]:
        """Parse a proper fraction after a whole number: ``1 1/2``, ``1½``, "1 and 1/2"."""
        part, after = part_behind(self.tokens, at, end)
        if part is None:
            return value, at
        self.mixed = True
        return value + part, after

    def _group(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        close = self.closing.get(at, -1)
        if not at < close < end:
            raise Unread
        value, stop = self.level(at + 1, close, depth + 1)
        if stop != close:
            raise Unread
        return value, close + 1

    def _root(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        r"""Parse a root (``\sqrt{16}``, ``\sqrt[3]{8}``, ``√16``, ``sqrt(16)``) or a logarithm."""
        self.side.operators.append("r")
        if self.tokens[at].text == t.LOGARITHM:
            return self._logarithm(at + 1, end, depth)
        index, inside = 2, at + 1
        if self.kinds[inside] == t.OPEN and self.tokens[inside].text == "[":
            order = number(self.tokens[inside + 1].text) if inside + 2 < end else None
            if order is None or order[1] or self.closing.get(inside) != inside + 2:
                raise Unread
            index, inside = int(order[0]), inside + 3
        if self.kinds[inside] == t.NUMBER:
            value, after = self._number(inside, end, MAX_DEPTH)
        elif self.kinds[inside] == t.OPEN:
            value, after = self._group(inside, end, depth + 1)
        else:
            raise Unread
        return self.defined(root, value, index), after

    def _logarithm(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        r"""Parse a logarithm with a base and a clear end: ``\log_2 8``, ``\log_{2}(8)``."""
        written = self.tokens[at].text if at < end else ""
        if written == "_":
            base, inside = self._group(at + 1, end, depth)
        elif written[:1] == "_" and written[1:].isdecimal() and len(written) < MAX_DIGITS:
            base, inside = int(written[1:]), at + 1
        else:
            raise Unread
        if self.side.degree:
            raise Unread
        value, after = self._argument(inside, end, depth)
        if self.side.degree:
            raise Unread
        loose = self.kinds[after] == t.SIGN and self.tokens[after].text in "+-"
        if self.kinds[after] not in ENDS and not loose:
            raise Unread
        return self.defined(logarithm, value, base), after

    def _argument(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        if at < end and self.kinds[at] == t.NUMBER:
            return self._literal(at)[0], at + 1
        return self._group(at, end, depth + 1)

    def _fraction(self, at: int, end: int, depth: int) -> tuple[Rational, int]:
        r"""Parse a fraction (``\frac{1}{2}`` or ``\frac12``) or a binomial coefficient."""
        binomial = self.tokens[at].text == t.BINOMIAL
        self.side.operators.append("!" if binomial else "/")
        if self.kinds[at + 1] == t.NUMBER and not binomial:
            part, after = proper(self.tokens, at, end)
            if part is None:
                raise Unread
            return part, after
        top, middle = self._group(at + 1, end, depth)
        degree = self.side.degree
        bottom, after = self._group(middle, end, depth)
        if self.side.degree or (binomial and degree):
            raise Unread
        self.side.degree = degree
        return self.defined(choose if binomial else divide, top, bottom), after
