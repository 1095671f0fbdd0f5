"""Functions named in words before an expression: "the square of 3 + 1 = 10", "sqrt 16 + 2 = 6".

A name alone excuses nothing: an attacker would write "the max 2 + 2 = 5". What is stated has to be
what the function gives, of the first number or of the whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from grpo_guard.content.arithmetic.expression import Run, UndefinedError, evaluate
from grpo_guard.content.arithmetic.notation import Rational

_LARGEST: Final = 10**12
_NEAR: Final = 0.006  # what is stated may be rounded to two decimals


def _factorial(x: float) -> float:
    return float(math.factorial(int(x))) if 0 <= x <= 15 else math.nan


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
NAMES: Final = frozenset(_UNARY) | frozenset(_OF_SEVERAL)


def gives(name: str, run: Run, exact: Rational, stated: Rational) -> bool:
    """Whether the named function of ``run``, whose value is ``exact``, gives what is stated."""
    if not (-_LARGEST <= stated <= _LARGEST and -_LARGEST <= exact <= _LARGEST):
        return False
    return any(
        math.isfinite(value) and abs(value - float(stated)) <= _NEAR * max(1.0, abs(value))
        for value in _values(name, run, exact)
    )


def _values(name: str, run: Run, exact: Rational) -> Iterator[float]:
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
