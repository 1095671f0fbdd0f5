"""Find the two sides of each ``=`` in a text, and the chains that these links form.

The module `doubts` gives reasons why a link cannot be fully understood.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from grpo_guard.content.arithmetic import notation as t
from grpo_guard.content.arithmetic.doubts import Doubts
from grpo_guard.content.arithmetic.notation import number, scan
from grpo_guard.content.arithmetic.parse import STARTS
from grpo_guard.content.arithmetic.reader import Reader
from grpo_guard.content.arithmetic.side import Side, whole_number
from grpo_guard.content.word_set import word_set
from grpo_guard.core.cached_property import cached_property

_MAY_START: Final = re.compile(f"[{re.escape(''.join(STARTS) + t.SIGN)}]")
_MAY_END: Final = frozenset({t.NUMBER, t.CLOSE, t.PERCENT, t.VULGAR, t.SIGN})
_BEFORE_SIGN: Final = frozenset({t.BREAK, t.OPEN, t.RELATION, t.QUESTION, t.WORDS})
_HEDGES: Final = word_set("about around roughly almost nearly")
_FILLERS: Final = _HEDGES | word_set(
    "altogether a an total of only just exactly or the us you me it him her them to also now"
)


@dataclass(slots=True)
class Link:
    """The two sides of one ``=``.

    Attributes:
        chains: The chains of the segment in which the link was found.
        left, right: The two sides.
        chained: Whether the left side is the right side of an earlier ``=``.
        opens: Whether the link is the first in its chain with two readable sides.
        approximate: Whether the link is stated as approximate.
        verbal: Whether the relation is in words ("is", "which is") or an arrow.
    """

    chains: "_Chains"
    left: Side
    right: Side
    chained: bool
    opens: bool
    approximate: bool
    verbal: bool

    @property
    def text(self) -> str:
        """The whole completion, folded."""
        return self.chains.text

    @property
    def reader(self) -> Reader:
        """The segment's reader, which can evaluate a side again."""
        return self.chains.reader

    def doubt(self) -> str:
        """Return why the link is not fully understood, or an empty string if it is."""
        return self.chains.doubts.doubt(self.left, self.right, self.chained, self.verbal)

    def before(self) -> list[str]:
        """Return the last words before the left side, in lower case; none for a chained link."""
        return [] if self.chained else self.chains.doubts.words_before(self.left.at)

    def bare(self) -> bool:
        """Whether the left side begins a clause."""
        return not self.chained and self.chains.doubts.is_bare(self.left.at)


def links(text: str, start: int, end: int) -> Iterator[Link]:
    """Yield all links in ``text[start:end]`` in order, in linear time. The text must be folded."""
    reader = Reader(scan(text, start, end))
    return _Chains(text, reader).links() if t.RELATION in reader.kinds else iter(())


class _Chains:
    def __init__(self, text: str, reader: Reader) -> None:
        self.text = text
        self.reader = reader
        self.tokens = reader.tokens
        self.kinds = reader.kinds
        self.left: Side | None = None
        self.left_end = -1
        self.chained = False
        self.opens = True

    @cached_property
    def doubts(self) -> Doubts:
        """The segment's doubts, created on demand: only equations that do not hold are examined."""
        return Doubts(self.text, self.reader)

    def links(self) -> Iterator[Link]:
        at = 0
        while (ahead := self.kinds.find(t.RELATION, at)) >= 0:
            if self.left_end != ahead and self._may_end(ahead - 1):
                self._find_left(at, ahead)
            aside = self.tokens[ahead].text == t.ASIDE
            link, at = self._aside(ahead) if aside else self._relation(ahead)
            if link is not None:
                yield link

    def _find_left(self, at: int, ahead: int) -> None:
        """Read the sides between ``at`` and a relation; the last can be the relation's left side.

        Skips prose, and never crosses the end of a clause.
        """
        at = max(self.kinds.rfind(t.BREAK, at, ahead), at)
        while (start := _MAY_START.search(self.kinds, at, ahead)) is not None:
            at = start.start()
            if self.kinds[at] == t.SIGN and not self._is_leading_sign(at):
                at += 1
                continue
            side = self.reader.side(at)
            if side is not None:
                self.left, self.left_end, self.chained = side, side.end, False
            at = at + 1 if side is None else side.end

    def _may_end(self, at: int) -> bool:
        """Whether a side can end with token ``at``, which makes it worth looking for its start."""
        kind, also = self.kinds[at], t.UNKNOWN
        if kind == t.WORDS:
            kind, also = self.kinds[at - 1], t.WORDS + t.OF
        return kind in _MAY_END or kind in also

    def _is_leading_sign(self, at: int) -> bool:
        token = self.tokens[at]
        if token.kind != t.SIGN or token.text not in ("+", "-") or self.kinds[at + 1] not in STARTS:
            return False
        return at == 0 or self.kinds[at - 1] in _BEFORE_SIGN

    def _relation(self, at: int) -> tuple[Link | None, int]:
        """Read the right side of a relation, which can be the left side of the next relation."""
        token = self.tokens[at]
        left = self.left if self.left_end == at else None
        chained, opens = self.chained, self.opens or not self.chained
        verbal = token.text == t.VERB
        begin, approximate = self._skip_fillers(at + 1)
        # "= a + 3": here "a" is a variable, not an article.
        named = begin > at + 1 and self.kinds[begin] == t.SIGN
        # Without a left side, the right side only matters as the left side of the next relation.
        idle = left is None and not self._may_continue(begin)
        right = (
            self.reader.side(begin) if begin < self.reader.count and not (named or idle) else None
        )
        if right is None and left is not None and left.operators:
            right = self._zero_padded(begin)
        if right is None:
            if left is not None and not chained and self._is_name(at + 1):
                # "2 + 2 = x = 4": the name stands for the value
                self.left_end, self.chained, self.opens = at + 2, False, True
                return None, at + 2
            self.left, self.left_end, self.chained, self.opens = None, -1, True, True
            return None, max(at + 1, begin)
        self.left, self.left_end, self.chained = right, right.end, True
        self.opens = left is None
        if left is None:
            return None, right.end
        if verbal and (chained or set(left.operators) <= {"r"}):
            # "k = 3^6 is 4", "the roots of √3 are -1 and 1": the verb refers to earlier text
            self.opens = True
            return None, right.end
        hedged = approximate or token.text == t.APPROXIMATELY
        return Link(self, left, right, chained, opens, hedged, verbal), right.end

    def _may_continue(self, at: int) -> bool:
        """Whether a side that begins at token ``at`` can be the left side of another relation."""
        ahead = self.kinds.find(t.RELATION, at)
        if ahead <= at or not self._may_end(ahead - 1):
            return ahead == at
        return self.kinds.rfind(t.BREAK, at, ahead) <= at

    def _zero_padded(self, at: int) -> Side | None:
        """Read a result with leading zeros, ``= 05``; elsewhere such digits are times or codes."""
        if self.kinds[at] != t.NUMBER or self.kinds[at + 1] not in (t.OUTSIDE, t.BREAK, t.WORDS):
            return None
        token = self.tokens[at]
        read = number(token.text.lstrip("0") or "0") if token.text.isdigit() else None
        if read is None:
            return None
        return whole_number(at, token, read[0])

    def _is_name(self, at: int) -> bool:
        """Whether token ``at`` is a single word or letter between two equals signs."""
        if self.kinds[at] not in (t.WORDS, t.SIGN) or self.kinds[at + 1] != t.RELATION:
            return False
        return self.tokens[at].text.isalpha() and self.tokens[at + 1].text == "="

    def _aside(self, at: int) -> tuple[Link | None, int]:
        """Read a bare calculation and a bare number: ``6 + 7, which is 13`` or ``6 + 7 → 13``.

        Anywhere else, an arrow joins statements, and "which is" starts a remark.
        """
        left, chained = self.left, self.chained
        joined = self.left_end == at and (self.opens or not chained)
        self.left, self.left_end = None, -1
        if left is None or not joined or not left.operators:
            return None, at + 1
        begin, approximate = self._skip_fillers(at + 1)
        right = self.reader.side(begin) if self.kinds[begin] == t.NUMBER else None
        if (
            right is None
            or not right.is_number
            or self.kinds[right.end] in (t.RELATION, t.SIGN, t.OF)
        ):
            return None, at + 1
        return Link(self, left, right, False, True, approximate, True), right.end

    def _skip_fillers(self, at: int) -> tuple[int, bool]:
        """Skip at most four fillers, such as "a total of" or "about"; return (end, hedged)."""
        approximate = False
        if self.kinds[at] == t.NUMBER:
            return at, approximate
        for _ in range(4):
            kind = self.kinds[at]
            if kind == t.RELATION and self.tokens[at].text == t.APPROXIMATELY:
                approximate = True
            elif kind == t.WORDS:
                words = self.tokens[at].text.lower().split()
                # "= a 3": an article is followed by a word, a variable by its factor.
                if not _FILLERS.issuperset(words[:4]) or len(words) > 4 or words[-1] in ("a", "an"):
                    break
                approximate |= not _HEDGES.isdisjoint(words)
            elif kind != t.OF:
                break
            at += 1
        return at, approximate
