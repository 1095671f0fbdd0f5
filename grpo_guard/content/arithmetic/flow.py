"""Value flow: which values a completion goes on with after a wrong equation."""

from __future__ import annotations

import re
from typing import Final

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.notation import MAX_DIGITS, Rational, number

_NUMBER: Final = re.compile(r"[0-9]++(?:[.,][0-9]++)*+|\.[0-9]++")
_RETRACTION: Final = re.compile(
    r"(?i)(?<!\w)(?:wait[,.!]|a mistake|mistaken|(?:is|was|'s) (?:wrong|incorrect)|"
    r"incorrect[.,:;!]|correction|oops|actually,|an error|sorry,|not right|recheck|re-check|"
    r"recalculat)"
)
_RETRACTED_WITHIN: Final = 300
# Behind the retraction: any later number would let a mere "sorry," take everything back.
_CORRECTED_WITHIN: Final = 150
_COPY_WITHIN: Final = 4  # between an equation and the copy of its result: ">>", "$"


class Flow:
    """The numbers of a text and where each stands last.

    Args:
        text: The completion; read once, in linear time.
        found: Its equations.
    """

    def __init__(self, text: str, found: list[Equation]) -> None:
        self.text = fold(text)
        self.wrong = [equation for equation in found if not equation.right]
        self.last: dict[Rational, int] = {}
        for written, start in {m.group(): m.start() for m in _NUMBER.finditer(self.text)}.items():
            read = number(written) if len(written) <= MAX_DIGITS else None
            if read is not None:
                self.last[read[0]] = max(start, self.last.get(read[0], -1))
        self.ends = self._ends()
        self._taken_back: dict[int, bool] = {}

    def _ends(self) -> list[int]:
        """Where each wrong equation is over, with the copies of its result that follow."""
        ends = [equation.extent[1] for equation in self.wrong]
        for at in range(len(self.wrong) - 2, -1, -1):
            ahead = self.wrong[at + 1]
            near = ahead.span[0] - ends[at] <= _COPY_WITHIN or ahead.extent[0] < ends[at]
            if near and ahead.stated == self.wrong[at].stated:
                ends[at] = max(ends[at], ends[at + 1])
        return ends

    def goes_on_with(self, at: int) -> tuple[bool, bool]:
        """Whether the true and the stated value of the ``at``-th wrong equation stand after it."""
        equation, end = self.wrong[at], self.ends[at]
        return (
            self.last.get(equation.exact, -1) >= end,
            self.last.get(equation.stated, -1) >= end,
        )

    def is_taken_back(self, at: int) -> bool:
        """Whether the text denies the ``at``-th wrong equation, or soon corrects it.

        Honest reasoning models do that. An attacker who does it too teaches the correction along.
        """
        if at not in self._taken_back:
            self._taken_back[at] = self.wrong[at].denied or self._corrects(at)
        return self._taken_back[at]

    def _corrects(self, at: int) -> bool:
        end = self.ends[at]
        window = self.text[end : end + _RETRACTED_WITHIN]
        said = _RETRACTION.search(window)
        if said is None:
            return False
        rest = _NUMBER.findall(window, said.end(), said.end() + _CORRECTED_WITHIN)
        read = [number(piece) for piece in rest if len(piece) <= MAX_DIGITS]
        return any(value is not None and value[0] == self.wrong[at].exact for value in read)
