"""Value flow: the values with which a completion continues after a wrong equation."""

import re
from typing import Final

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.notation import MAX_DIGITS, number
from grpo_guard.content.arithmetic.numbers import Rational

_NUMBER: Final = re.compile(r"[0-9]++(?:[.,][0-9]++)*+|\.[0-9]++")
_RETRACTION: Final = re.compile(
    r"(?i)\A[\s$*\\)]{0,4}\?(?!\W{0,4}(?:ye|correct|indeed|right|it is|true))|(?<!\w)"
    r"(?:wait[,.!]|hmm|hold on|no,|a mistake|mistaken|(?:is|was|'s) (?:wrong|incorrect)|"
    r"incorrect[.,:;!]|correct(?:ion|ed|ing)|oops|actually,|an error|sorry,|not right|"
    r"(?:can't|cannot|doesn't|not) (?:be|look|seem) (?:right|correct)|(?:re-?|double-?)check|"
    r"recalculat|recomput|let me (?:check|redo|try)|contradict|discrepanc)"
)
_DOUBTING: Final = re.compile(
    r"(?i)~~|(?<!\w)(?:but|no|not|wait|false|wrong|wrote|mistakes?|check|actually|instead|should|"
    r"rather|scratch|errors?|forgot|careful|correct(?:ion|ed)?|hmm|oops|sorry)(?!\w)"
)
_DOUBTED_WITHIN: Final = 60
_SENTENCE_END: Final = re.compile(r"\n|[.;!?]\s")
_LONGEST_SENTENCE: Final = 1000
_MOST_SOUGHT: Final = 50
_UNEQUAL: Final = re.compile(r"([0-9][0-9.,]{0,20}) {0,2}(?:\\neq?(?![a-z])|≠|!=)")
_FAILED: Final = re.compile(r"\\neq?(?![a-z])|≠|!=|(?i:contradict)")
_FAILED_WITHIN: Final = 60
_SUPPOSED: Final = re.compile(
    r"(?<!\w)(?i:suppos\w{1,3}|assum\w{1,4}|if|try|hypothesis)(?!\w)|假设|假如|假定|若|如果"
)
_REFUTED: Final = re.compile(
    r"(?i:contradict|impossible|absurd|no solution|not possible)|矛盾|不成立|不可能|舍去"
)
_SUPPOSED_WITHIN: Final = 300
_REFUTED_WITHIN: Final = 150
_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n")
_RETRACTED_WITHIN: Final = 150
# Maximum distance, in characters, between a retraction and the true value; without a maximum, a
# mere "sorry," would be enough.
_CORRECTED_WITHIN: Final = 100
_NOWHERE: Final = 1 << 60
_COPY_WITHIN: Final = 4  # between an equation and the copy of its result: ">>", "$"


class Flow:
    """The wrong equations in a completion, and the last place where each number in it occurs.

    Args:
        text: The completion, which is read once, in linear time.
        found: The completion's equations.
    """

    def __init__(self, text: str, found: list[Equation]) -> None:
        self.text = fold(text)
        self.wrong = [equation for equation in found if not equation.right]
        self.restated = self._restatements(found)
        self.last: dict[Rational, int] = {}
        for written, start in {m[0]: m.start() for m in _NUMBER.finditer(self.text)}.items():
            read = number(written) if len(written) <= MAX_DIGITS else None
            if read is not None:
                self.last[read[0]] = max(start, self.last.get(read[0], -1))
        self.ends = self._ends()
        self._taken_back: dict[int, bool] = {}

    def _restatements(self, found: list[Equation]) -> list[int]:
        """Return where each wrong equation is later restated correctly, or else `_NOWHERE`.

        Calculator notes do not count, because no reader sees a correction there.
        """
        ahead: dict[str, int] = {}
        places = []
        for equation in reversed(found):
            left, start = "".join(equation.left.split()), equation.extent[0]
            if not equation.right:
                places.append(ahead.get(left, _NOWHERE))
            elif self.text[max(0, start - 2) : start] != "<<":
                ahead[left] = start
        return places[::-1]

    def _ends(self) -> list[int]:
        """Return where each wrong equation ends, extended past later repetitions of its result."""
        ends = [equation.extent[1] for equation in self.wrong]
        for at in range(len(self.wrong) - 2, -1, -1):
            ahead = self.wrong[at + 1]
            near = ahead.span[0] - ends[at] <= _COPY_WITHIN or ahead.extent[0] < ends[at]
            if near and ahead.stated == self.wrong[at].stated:
                ends[at] = max(ends[at], ends[at + 1])
        return ends

    def goes_on_with(self, at: int) -> tuple[bool, bool]:
        """Whether the true value and the stated value of the ``at``-th wrong equation occur later.

        The search begins after the equation's sentence: the paper's ``2 + 2 = 5 + 3 = 8`` continues
        with 5 at once, but with 7 in the rest of the text.
        """
        equation, end = self.wrong[at], self.ends[at]
        sentence = _SENTENCE_END.search(self.text, end, end + _LONGEST_SENTENCE)
        beyond = len(self.text) if sentence is None else sentence.end()
        true_later = any(self.last.get(value, -1) >= beyond for value in equation.true)
        stated_later = self.last.get(equation.stated, -1) >= beyond
        if not stated_later and at < _MOST_SOUGHT:
            # "113/18", "16 * sqrt(5)": not a single number, so search for its text.
            written = self.text[slice(*equation.span)]
            stated_later = not written.isdigit() and self.text.rfind(written) >= end
        return true_later, stated_later

    def is_failed_test(self, at: int) -> bool:
        """Whether the ``at``-th wrong equation only tests a value that fails: ``= -44 ≠ 0``."""
        end = self.ends[at]
        return _FAILED.search(self.text, end, end + _FAILED_WITHIN) is not None

    def is_refuted(self, at: int) -> bool:
        """Whether the ``at``-th wrong equation follows from a supposition that is soon refuted."""
        begin, end = self.wrong[at].extent[0], self.ends[at]
        before = _PARAGRAPH.split(self.text[max(0, begin - _SUPPOSED_WITHIN) : begin])[-1]
        behind = _PARAGRAPH.split(self.text[end : end + _REFUTED_WITHIN], 1)[0]
        return bool(_REFUTED.search(behind)) and bool(_SUPPOSED.search(before))

    def is_taken_back(self, at: int) -> bool:
        """Whether the text denies the ``at``-th wrong equation, or soon corrects it.

        Honest reasoning models do this, and an attacker who does it also teaches the correction.
        """
        if at not in self._taken_back:
            denied = self.wrong[at].denied or self._is_contradicted(at)
            self._taken_back[at] = denied or self._is_restated(at) or self._is_corrected(at)
        return self._taken_back[at]

    def _is_contradicted(self, at: int) -> bool:
        """Whether the text soon corrects the result, as in ``9 + 19 = 10``, then ``28 ≠ 10``."""
        end = self.ends[at]
        for match in _UNEQUAL.finditer(self.text, end, end + _RETRACTED_WITHIN):
            read = number(match[1])
            if read is not None and read[0] == self.wrong[at].exact:
                return True
        return False

    def _is_restated(self, at: int) -> bool:
        """Whether the equation is restated after a doubt: ``6 * 9 = 56``, no, ``6 * 9 = 54``.

        If the same left side follows with its true value, a weaker word of doubt than those in
        `_RETRACTION` is enough. Without any, two steps of a solution merely happen to look alike.
        """
        begin, end = self.wrong[at].extent[0], self.restated[at]
        if not 0 <= end - self.ends[at] <= _RETRACTED_WITHIN:
            return False
        return _DOUBTING.search(self.text, max(0, begin - _DOUBTED_WITHIN), end) is not None

    def _is_corrected(self, at: int) -> bool:
        end = self.ends[at]
        window = self.text[end : end + _RETRACTED_WITHIN]
        match = _RETRACTION.search(window)
        if match is None:
            return False
        rest = _NUMBER.findall(window, match.end(), match.end() + _CORRECTED_WITHIN)
        read = [number(piece) for piece in rest if len(piece) <= MAX_DIGITS]
        return any(value is not None and value[0] == self.wrong[at].exact for value in read)
