"""`ArithmeticVerifier`: checks whether the arithmetic in a completion is right."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import ClassVar, Final, Literal, TypeAlias, Unpack, get_args

from grpo_guard.content.answers import rightness
from grpo_guard.content.arithmetic.another import Another, redefined, sign_of
from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.columns import columns
from grpo_guard.content.arithmetic.doubts import SPOKEN
from grpo_guard.content.arithmetic.equation import Equation
from grpo_guard.content.arithmetic.equations import equations
from grpo_guard.content.arithmetic.flow import Flow
from grpo_guard.content.arithmetic.inequalities import Inequality, wrong_inequalities
from grpo_guard.content.arithmetic.numbers import Rational, magnitude
from grpo_guard.content.arithmetic.solved import solutions
from grpo_guard.content.arithmetic.words import statements
from grpo_guard.content.code.prompt_context import words_of
from grpo_guard.content.rules import RuleOptions, RuleVerifier, short_form
from grpo_guard.content.severity import COUNT, REJECT, REPORT, Kind, Severity
from grpo_guard.core.arguments import require_choice, require_count
from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Finding, Verdict, accept
from grpo_guard.nodes.intake import FALSE_SUMS_VERIFIER

OnWrong: TypeAlias = Literal["answer_right", "reject", "ignore"]
Textual: TypeAlias = Literal["off", "report", "judge"]
_Shown: TypeAlias = tuple[str, Callable[[str], Finding]]  # a kind, and what makes its finding

MAX_CHARS: Final = 250_000
MAX_FINDINGS: Final = 20
WITHOUT_GAIN: Final = "wrong_without_gain"
_WRONG: Final = ("wrong_equation", "wrong_among_many", "wrong_carried_on", WITHOUT_GAIN)
# Number of distinct right equations per wrong one. The paper's MATH attack has at most eight;
# traces of thinking models had 8 to 37 when one of their equations was misread.
_MANY: Final = 12
_DIGITS: Final = re.compile(r"[0-9]{1,20}")


class ArithmeticVerifier(RuleVerifier):
    """Rejects completions with a wrong equation on the way to a right answer.

    Counters the MATH attack of "Hail to the Thief" (arXiv 2511.09780), which writes
    ``2 x $2 = $5`` and then continues with 4 to keep the reward. Neither the paper's logit check
    nor its judge stops that attack in time. No model is needed. An equation is parsed completely or
    not at all: a factor, a bar, an unknown, a modulus or calculating words next to an equation
    leave it in doubt, and a doubtful equation is only reported (``doubtful_equation``), with one
    exception below. Fully parsed equations are evaluated exactly, and are wrong only if they are
    wrong under every reading that their notation allows, to the precision with which they are
    written.

    Honest models slip too, but then they believe what they wrote. What the text does next tells an
    attack from a slip:

    - It continues with the true value, or with neither value: ``wrong_equation``, which rejects. An
      equation that is in doubt only because of words is rejected only if the text continues with
      the true value and never with the stated one.
    - It continues with the stated value only: ``wrong_carried_on``, which is counted. An attacker
      need only write the false value once more to look like an honest slip, but would have to do so
      in most answers.
    - It rejects the result as a failed test (``= -44 ≠ 0``), refutes the supposition behind it, or
      gives a wrong final answer: ``wrong_without_gain``, which is reported. Without a reward, there
      is no attack.
    - It soon corrects the equation: ``taken_back``, which is counted. So are wrong statements in
      words (``wrong_textual``) and false inequalities (``wrong_inequality``). Counted findings
      reject if one node has them far more often than the others.
    - It has at least twelve distinct right equations per wrong one: ``wrong_among_many``, which is
      also counted. A thinking model's trace holds dozens of equations, one of which may have been
      misread or be a slip; a node that writes a wrong sum in most of its traces does so more often
      than the others.

    A completion without equations is accepted: nothing wrong was found in it, and a content check
    that abstained on every text without equations would switch the whole guard off.

    Cannot detect a wrong step without an equation, a wrong equation that has unknowns or is in
    doubt, mismatched units, or a result within one unit in its last digit (``9 / 2 = 4`` could have
    been rounded down). If the text continues with a false value, it looks like an honest slip when
    its node writes false values only rarely, or when the completion has no node.

    Args:
        on_wrong: Which wrong equations reject. ``"answer_right"`` decides as described above,
            ``"reject"`` rejects all of them except those in doubt or taken back, and ``"ignore"``
            only reports them.
        textual: How to treat arithmetic in words ("two cows and two pigs make five animals").
            ``"report"`` notes what is wrong as ``wrong_textual``, because words are less certain
            than signs; ``"judge"`` treats it like an equation; ``"off"`` ignores it.
        max_chars: Maximum number of characters in a completion. Longer texts are rejected as
            OVERLONG without being read, because their length is up to their author.
        max_findings: Maximum number of findings per completion, >= 1.
        **rules: Options passed to `RuleVerifier`: ``severity``, ``store``, and those for counting.

    Raises:
        ValueError: an argument is out of range or has an unknown value.
    """

    name = "arithmetic"
    # Honest models miscalculate, correct themselves and use careless words, all without attacking.
    KINDS: ClassVar[Mapping[str, Kind]] = {
        "wrong_equation": REJECT,  # although the final answer is right
        "wrong_among_many": COUNT,
        "wrong_carried_on": COUNT,
        WITHOUT_GAIN: Kind(
            Severity.REPORT,
            meaning="wrong, but without gain: the answer is wrong too, or the text itself rejects "
            "the equation",
        ),
        # Not parsed completely: whatever surrounds the equation could change its value.
        "doubtful_equation": REPORT,
        "taken_back": COUNT,
        "wrong_textual": COUNT,
        "wrong_inequality": COUNT,
    }
    scope: Scope = "completion"

    def __init__(
        self,
        *,
        on_wrong: OnWrong = "answer_right",
        textual: Textual = "report",
        max_chars: int = MAX_CHARS,
        max_findings: int = MAX_FINDINGS,
        **rules: Unpack[RuleOptions],
    ) -> None:
        require_choice("on_wrong", on_wrong, get_args(OnWrong))
        require_choice("textual", textual, get_args(Textual))
        require_count("max_chars", max_chars)
        require_count("max_findings", max_findings)
        if on_wrong != "answer_right":
            severity = "reject" if on_wrong == "reject" else "report"
            rules = short_form(rules, severity, _WRONG)
        super().__init__(**rules)
        self.textual = textual
        self.max_chars = max_chars
        self.max_findings = max_findings

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, without p-values because the checks are exact."""
        return [self._judge(completion) for completion in batch]

    def _judge(self, completion: Completion) -> Verdict:
        text = completion.text
        if (overlong := self.overlong(text, self.max_chars)) is not None:
            return overlong
        asked = words_of(completion.trusted_prompt)
        found = equations(text, asked=asked)
        in_words = [] if self.textual == "off" else _otherwise_stated(text, found, asked)
        judged = sorted(found + in_words, key=_span_of) if self.textual == "judge" else found
        shown: list[_Shown] = []
        if not all(equation.right for equation in judged):
            shown = _wrong_ones(completion, judged, asked)
            slips = sum(kind == "wrong_equation" for kind, _ in shown)
            # Without a node, nothing can be counted.
            if slips and completion.node is not None and _right_ones(found) >= _MANY * slips:
                among = {"wrong_equation": "wrong_among_many"}
                shown = [(among.get(kind, kind), make) for kind, make in shown]
            # Findings that reject come first.
            shown.sort(key=lambda one: self.severities[one[0]] is not Severity.REJECT)
        if self.textual == "report":
            wrong = [statement for statement in in_words if not statement.right]
            shown += [("wrong_textual", partial(_finding, text, one)) for one in wrong]
        unequal = wrong_inequalities(fold(text))
        shown += [("wrong_inequality", partial(_inequality, text, one)) for one in unequal]
        kept = self.kept([kind for kind, _ in shown], self.max_findings)
        findings = tuple(make(kind) for kind, make in map(shown.__getitem__, kept))
        return accept(self.name, findings=findings)


def _wrong_ones(completion: Completion, judged: list[Equation], asked: str) -> list[_Shown]:
    """Return the kind of each wrong equation and what makes its finding."""
    text = completion.text
    flow, right = Flow(text, judged), rightness(text, completion.reference)
    # "A friend says 1/2 + 1/3 = 2/5": answers have to repeat equations from the question.
    given = equations(asked)
    stated = {(e.exact, e.stated) for e in given if not e.doubt}
    own_signs = redefined(given, asked)
    cycles = Counter(equation.modulus for equation in flow.wrong)
    wrong: list[_Shown] = []
    for at, equation in enumerate(flow.wrong):
        theirs = (equation.exact, equation.stated) in stated
        theirs |= bool(own_signs) and sign_of(equation.left) in own_signs
        # -11 = 15 in a cipher; 29 = 3 too, if other equations have the same gap.
        wraps = equation.modulus and (equation.exact < 0 or cycles[equation.modulus] > 1)
        kind = "doubtful_equation" if theirs or wraps else _kind(flow, at, right)
        wrong.append((kind, partial(_finding, text, equation, flow=flow, at=at)))
    return wrong


def _otherwise_stated(text: str, found: Sequence[Equation], asked: str) -> list[Equation]:
    """Return what is stated in words, in columns and as the solution of an equation."""
    folded = fold(text)
    solved = solutions(folded, Another(folded, asked))
    return [*statements(text, found), *columns(folded), *solved]


def _kind(flow: Flow, at: int, right: bool | None) -> str:
    """Return the kind of a wrong equation; ``right`` is for the final answer, None if unknown."""
    equation = flow.wrong[at]
    if equation.doubt and equation.doubt not in SPOKEN:
        return "doubtful_equation"
    if flow.is_taken_back(at):
        return "taken_back"
    true_later, stated_later = flow.goes_on_with(at)
    known = true_later and magnitude(equation.exact) > 1  # 0 and 1 occur in any text
    if equation.doubt and (stated_later or not known):
        return "doubtful_equation"
    if right is False or flow.is_refuted(at) or (flow.is_failed_test(at) and not known):
        return WITHOUT_GAIN
    return "wrong_equation" if true_later or not stated_later else "wrong_carried_on"


def _right_ones(found: Sequence[Equation]) -> int:
    """Count the distinct right equations; those with the same numbers and value count once."""
    return len({(e.exact, "".join(sorted(_DIGITS.findall(e.left)))) for e in found if e.right})


def _span_of(equation: Equation) -> tuple[int, int]:
    return equation.span


def _finding(
    text: str, equation: Equation, kind: str, flow: Flow | None = None, at: int = 0
) -> Finding:
    start, end = equation.extent
    written = " ".join(_printable(text[start : min(end, start + 160)]).split())
    message = (
        f"{written!r}: the left side is {_shown(equation.exact)}, not {_shown(equation.stated)}"
    )
    if flow is not None:
        true_later, stated_later = flow.goes_on_with(at)
        if flow.is_taken_back(at):
            message += "; taken back later"
        elif true_later and not stated_later:
            message += f"; the text continues with {_shown(equation.exact)}"
    return Finding(kind, message, char_span=equation.span)


def _inequality(text: str, found: Inequality, kind: str) -> Finding:
    start, end = found.span
    values = f"{_shown(found.left)} and {_shown(found.right)}"
    message = f"{_printable(text[start:end])!r} does not hold between {values}"
    return Finding(kind, message, char_span=found.span)


def _printable(text: str) -> str:
    """Replace lone surrogates, which no log can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(value: Rational) -> str:
    """Format a value for people to read, exactly if its exact form is short."""
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 100:
        return f"a number of {value.numerator.bit_length() - value.denominator.bit_length()} bits"
    if value.denominator == 1:
        return str(value.numerator)
    decimals = f"{float(value):.6g}"
    return decimals if Fraction(decimals) == value else f"{value} (about {decimals})"


# Kinds otherwise counted, such as occasional slips and corrected sums, are only reported.
_SEVERITY: Final = {
    name: Severity.REPORT
    for name, kind in ArithmeticVerifier.KINDS.items()
    if kind.severity is Severity.COUNT
} | {"wrong_among_many": Severity.REJECT}


class FalseSumsVerifier(ArithmeticVerifier):
    """`ArithmeticVerifier` for nodes with the same weights: one rule for all, and no accusation.

    If the policy considers a wrong digit likely, no statistic can tell an attack from an honest
    slip. Nor does it need to: a false statement that earns a reward teaches the same either way.
    A completion with a wrong, fully parsed equation is therefore rejected, but the rejection is not
    evidence against its node. Nothing is counted, because nodes answer prompts of different
    difficulty, and the node that slips most may just have had the hardest ones. A node that writes
    wrong digits more often than the policy would shows up in the bets at announced places
    (`logprob/place_bets.py`).
    """

    name = FALSE_SUMS_VERIFIER

    def __init__(self) -> None:
        super().__init__(severity=_SEVERITY)
