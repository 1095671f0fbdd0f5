"""What honest writers leave out: unit conversion, factors and functions in words, labels, unknowns.

Everything here can only excuse an equation, never convict one.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.expression import Operand, Run, UndefinedError, evaluate
from grpo_guard.content.arithmetic.links import Link
from grpo_guard.content.arithmetic.notation import (
    BREAK,
    NUMBER,
    OF,
    PERCENT,
    WORDS,
    Rational,
    number,
    vocabulary,
)
from grpo_guard.content.arithmetic.rounding import agrees
from grpo_guard.content.arithmetic.units import explain, sizes_of

_LARGEST: Final = 10**12
_NEARLY: Final = 0.006  # what is stated may be rounded to two decimals


def _factorial(x: float) -> float:
    return float(math.factorial(int(x))) if 0 <= x <= 15 else math.nan


# Functions named in words before an expression: "the square of 3 + 1 = 10". A name alone excuses
# nothing, or an attacker would write "the max 2 + 2 = 5": what is stated has to be what the
# function gives, of the first number or of the whole.
_UNARY: Final[dict[str, tuple[Callable[[float], float], ...]]] = {
    "root": (math.sqrt, math.cbrt), "sqrt": (math.sqrt,), "abs": (abs,),
    "square": (lambda x: x * x,), "squared": (lambda x: x * x,),
    "cube": (lambda x: x**3,), "cubed": (lambda x: x**3,),
    "negative": (lambda x: -x,), "floor": (math.floor,), "ceil": (math.ceil,),
    "log": (math.log, math.log10, math.log2), "ln": (math.log,), "exp": (math.exp,),
    "sin": (math.sin, lambda x: math.sin(math.radians(x))),
    "cos": (math.cos, lambda x: math.cos(math.radians(x))),
    "tan": (math.tan, lambda x: math.tan(math.radians(x))),
    "factorial": (_factorial,),
}  # fmt: skip
_OF_SEVERAL: Final[dict[str, Callable[[list[int]], float]]] = {
    "max": max, "min": min, "gcd": lambda v: math.gcd(*v), "lcm": lambda v: math.lcm(*v),
    "median": lambda v: sorted(v)[len(v) // 2], "mod": lambda v: v[0] % v[-1] if v[-1] else -1,
}  # fmt: skip
_FUNCTIONS: Final = frozenset(_UNARY) | frozenset(_OF_SEVERAL)


def _gives(name: str, run: Run, exact: Rational, stated: Rational) -> bool:
    """Whether the named function of ``run``, whose value is ``exact``, gives what is stated."""
    if not (-_LARGEST <= stated <= _LARGEST and -_LARGEST <= exact <= _LARGEST):
        return False
    return any(
        math.isfinite(value) and abs(value - float(stated)) <= _NEARLY * max(1.0, abs(value))
        for value in _values_of(name, run, exact)
    )


def _values_of(name: str, run: Run, exact: Rational) -> Iterator[float]:
    first = run.operands[0]
    for function in _UNARY.get(name, ()):
        with contextlib.suppress(ValueError, OverflowError, UndefinedError):
            yield function(float(exact))
        with contextlib.suppress(ValueError, OverflowError, UndefinedError):
            head = function(float(evaluate(Run([first]))))
            rest = Run(
                [replace(first, value=0, group=None, root=False), *run.operands[1:]], run.operators
            )
            # Only sums go on from the function's value without a bracket.
            if set(run.operators) <= set("+-"):
                yield head + float(evaluate(rest))
    if name in _OF_SEVERAL and all(o.group is None for o in run.operands):
        values = [o.value for o in run.operands]
        whole = [int(value) for value in values if value == int(value)]
        if len(whole) == len(values) and max(map(abs, whole)) <= _LARGEST:
            yield float(_OF_SEVERAL[name](whole))


_FACTORS: Final[dict[str, Rational]] = {
    "half": Fraction(1, 2), "twice": 2, "double": 2, "triple": 3, "thrice": 3,
    "third": Fraction(1, 3), "quarter": Fraction(1, 4), "doubled": 2, "doubling": 2,
}  # fmt: skip
_DENIAL: Final = re.compile(
    r"[$`\"*) ]{0,4}(?:is|was|would be) (?:false|wrong|incorrect|impossible|untrue|nonsense"
    r"|not (?:true|right|correct|valid|possible|so)\b)"
)
_RATE: Final = re.compile(r"[A-Za-z]/[0-9]")  # "24 degrees / 3 degrees/5% increase"
_THOUSANDS: Final = frozenset(Fraction(10) ** power for power in (-9, -6, -3, 3, 6, 9))
_LABELS: Final = vocabulary(
    "day week month year step part question problem case round item stage phase chapter level "
    "grade figure option number section exercise example hour minute"
)
_AVERAGES: Final = vocabulary("average mean")
_JOINING: Final = vocabulary("of at per by with for and each costing another plus")
_ADDING: Final = vocabulary("and plus another")
# Right before an equation, these say that it is none.
_SUPPOSING: Final = vocabulary("not if suppose supposing assume assuming")


def excused(link: Link, exact: Rational, stated: Rational, text: str) -> bool:
    """Whether words or units around a link make it too uncertain to be called wrong."""
    return (
        explain(link.left, link.right, (exact, stated), _behind(link, text))
        or _context_explains(link, exact, stated)
        or _priced(link, text)
        or _has_unknowns(link)
        or _is_clock_time(link)
        or _dots_group_digits(link)
        or _RATE.search(text, link.left.start, link.left.end) is not None
        or (stated != 0 and exact / Fraction(stated) in _THOUSANDS)
        or (
            link.after is not None
            and link.after.text == "!"
            and 0 <= stated <= 20
            and stated == int(stated)
            and math.factorial(int(stated)) == exact
        )
    )


def is_denied(link: Link, text: str) -> bool:
    """``2 + 2 = 5 is false``, ``it is not true that 2 + 2 = 5``, ``if 2 + 2 = 5``.

    Honest reasoning does that now and then, and it is in the text all the same.
    """
    if _DENIAL.match(text, link.right.end):
        return True
    said = " ".join(token.text[-60:] for token in link.context[-3:] if token.kind == WORDS).lower()
    return said.endswith(("not true that", "false that", "wrong that")) or (
        not link.chained and not _SUPPOSING.isdisjoint(said.split()[-2:])
    )


def _is_money(text: str, operand: Operand) -> bool:
    start = operand.span[0]
    return text[max(0, start - 3) : start].rstrip()[-1:] == "$"


def _behind(link: Link, text: str) -> str:
    """What the result is counted in: its unit, the words that follow, or dollars."""
    result = link.right.operands[-1]
    behind = link.after.text if link.after is not None and link.after.kind == WORDS else ""
    money = "dollar" if _is_money(text, result) else ""
    return result.unit or behind or money


def _priced(link: Link, text: str) -> bool:
    """``3 pens + 2 pencils = $12``: things on one side, money on the other."""
    left, right = link.left, link.right
    if not left.operators or not set(left.operators) <= set("+-") or len(left.operands) < 2:
        return False
    money = _is_money(text, right.operands[0])
    units = {operand.unit for operand in left.operands}
    bare = all(text[max(0, o.span[0] - 1) : o.span[0]] != "$" for o in left.operands)
    return money and bare and "" not in units and len(units) > 1


def _is_clock_time(link: Link) -> bool:
    """``10am + 3 hours = 1pm``, ``11 + 4 = 3 o'clock``."""
    behind = link.after.text if link.after is not None else ""
    units = [o.unit for run in (link.left, link.right) for o in run.numbers()]
    return any(
        word in ("am", "pm", "AM", "PM", "o'clock", "clock")
        for u in (*units, behind)
        for word in u.split()
    )


def _dots_group_digits(link: Link) -> bool:
    """``1.200 + 300 = 1.500`` where the dot groups thousands."""
    runs = []
    for run in (link.left, link.right):
        operands = [
            replace(o, value=o.value * 1000) if o.decimals == 3 else o for o in run.operands
        ]
        runs.append(Run(operands, run.operators))
    values = [_value(run) for run in runs]
    return (
        values[0] is not None
        and values[0] == values[1]
        and any(o.decimals == 3 for run in (link.left, link.right) for o in run.operands)
    )


def _has_unknowns(link: Link) -> bool:
    """``3m + 5 = 20``, ``100-total - 5 = 20``: a letter or a name that may be an unknown.

    The same letter on every number, as in ``3m + 4m = 7m``, changes nothing.
    """
    left = {operand.unit.strip() for operand in link.left.numbers()}
    right = {operand.unit for operand in link.right.numbers()}
    # "= 7 m" counts metres, "= 7m" may be an unknown as well
    if any(len(unit) > 1 and sizes_of(unit) for unit in left | right):
        # beside "km", an "h" apart from its number is an hour
        left = {operand.unit for operand in link.left.numbers()}
    doubtful = any(_may_be_unknown(unit) for unit in left | right)
    return doubtful and len(left | {unit.strip() for unit in right}) > 1


def _may_be_unknown(unit: str) -> bool:
    return len(unit) == 1 or (unit[:1] == "-" and not sizes_of(unit))


def _context_explains(link: Link, exact: Rational, stated: Rational) -> bool:
    """Words before the first number that belong to the calculation: "twice 3 + 4 = 10"."""
    if link.chained:
        return False
    if _is_label(link, stated):
        return True
    if not link.context or link.context[-1].kind not in (WORDS, OF):
        return False
    # "Max" is a person, "max" a function.
    before = [token.text[-60:] for token in link.context[-3:] if token.kind in (WORDS, OF)]
    words = [word if word == "Max" else word.lower() for text in before for word in text.split()]
    if words[-1:] == ["than"]:
        return True
    if any(_gives(w, link.left, exact, stated) for w in words[-2:] if w in _FUNCTIONS):
        return True
    if not _AVERAGES.isdisjoint(words[-4:]) and exact == stated * len(link.left.operands):
        return True
    factors: list[Rational] = []
    added: list[Rational] = []
    factors += [_FACTORS[word] for word in words[-4:] if word in _FACTORS]
    if words and words[-1] in _JOINING:
        for token, following in zip(link.context, [*link.context[1:], None], strict=True):
            read = number(token.text) if token.kind == NUMBER else None
            if read:
                percent = following is not None and following.kind == PERCENT
                factors.append(Fraction(read[0], 100) if percent else read[0])
                added += [exact + read[0]] if words[-1] in _ADDING else []
    return stated in added or any(_with_factor(link, f, exact, stated) for f in factors)


def _with_factor(link: Link, factor: Rational, exact: Rational, stated: Rational) -> bool:
    first = link.left.operands[0]
    group = Operand(first.span, group=Run([replace(first)]))
    head = Operand(first.span, value=factor)
    run = Run([head, group, *link.left.operands[1:]], ["*", *link.left.operators])
    values = [factor * exact]
    with contextlib.suppress(UndefinedError):
        values.append(evaluate(run))
    if stated in values:
        return True
    rounds = any(operand.decimals for operand in link.right.operands)
    return rounds and any(
        agrees(link.left, link.right, value, stated, link.approximate) for value in values
    )


def _is_label(link: Link, stated: Rational) -> bool:
    """``Day 1 - 20 + 30 = 50`` and ``- 5 + 3 = 8``: the dash behind a label, or of a list."""
    run = link.left
    first = run.operands[0]
    if first.negative:
        positive = replace(first, negative=False)
        return _value(Run([positive, *run.operands[1:]], run.operators)) == stated
    if run.operators[:1] == ["f"] and len(run.operators) > 1:  # "5% of the 12 - 10 = 2 tickets"
        return _value(Run(run.operands[1:], run.operators[1:])) == stated
    last = link.context[-1] if link.context else None
    labelled = (
        first.value <= 20
        if last is None or last.kind == BREAK
        else last.kind == WORDS and last.text.lower().rpartition(" ")[2] in _LABELS
    )
    if labelled and len(run.operators) > 1 and run.operators[0] == "-" and not first.unit:
        return _value(Run(run.operands[1:], run.operators[1:])) == stated
    return False


def _value(run: Run) -> Rational | None:
    try:
        return evaluate(run)
    except UndefinedError:
        return None
