"""Measures: conversions between units of one dimension that nobody wrote down."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.expression import Run, UndefinedError, evaluate
from grpo_guard.content.arithmetic.notation import Rational

_DIMENSIONS: Final[tuple[dict[str, Rational], ...]] = (
    {
        "second": 1, "minute": 60, "hour": 3600, "day": 86400, "night": 86400, "week": 604800,
        "month": 2592000, "year": 31536000, "decade": 315360000, "sec": 1, "min": 60, "hr": 3600,
        "s": 1, "h": 3600, "century": 3153600000,
    },
    {
        "mm": 1, "cm": 10, "m": 1000, "km": 10**6, "millimeter": 1, "centimeter": 10,
        "meter": 1000, "kilometer": 10**6, "metre": 1000, "inch": Fraction(254, 10),
        "foot": Fraction(3048, 10), "feet": Fraction(3048, 10), "ft": Fraction(3048, 10),
        "yard": Fraction(9144, 10), "mile": 1609344, "in": Fraction(254, 10),
    },
    {
        "mg": Fraction(1, 1000), "g": 1, "gram": 1, "kg": 1000, "kilogram": 1000, "kilo": 1000,
        "ton": 10**6, "ounce": Fraction(2835, 100), "oz": Fraction(2835, 100),
        "pound": Fraction(4536, 10), "lb": Fraction(4536, 10),
    },
    {
        "ml": 1, "liter": 1000, "litre": 1000, "l": 1000, "cup": 240, "pint": 480, "quart": 960,
        "gallon": 3840, "ounce": 30, "milliliter": 1, "teaspoon": 5, "tablespoon": 15,
    },
    {"cent": 1, "penny": 1, "pennie": 1, "nickel": 5, "dime": 10, "quarter": 25, "dollar": 100,
     "buck": 100},
    {"dozen": 12, "pair": 2, "couple": 2, "one": 1, "piece": 1, "egg": 1},
)  # fmt: skip
_KNOWN: Final = frozenset(unit for sizes in _DIMENSIONS for unit in sizes)
_WORD: Final = re.compile(r"[A-Za-z]++")


def sizes_of(unit: str) -> list[tuple[int, Rational]]:
    """Dimension and size of every measure that these words name."""
    found = []
    for word in _WORD.findall(unit[:80].lower()):
        for name in (word, word.removesuffix("s"), word.removesuffix("es")):
            if name in _KNOWN:
                found += [(d, sizes[name]) for d, sizes in enumerate(_DIMENSIONS) if name in sizes]
                break
    return found


def explain(left: Run, right: Run, values: tuple[Rational, Rational], counted: str) -> bool:
    """Whether two sides are equal once units are converted.

    Args:
        left, right: The two sides.
        values: Their values without units.
        counted: What the right side is counted in.
    """
    exact, stated = values
    if any(_converts(exact, stated, d, size) for d, size in sizes_of(counted)):
        return True
    named = [size for run in (left, right) for o in run.numbers() for size in sizes_of(o.unit)]
    ratios = {Fraction(a[1]) / b[1] for a in named[:20] for b in named[:20] if a[0] == b[0]}
    if any("^" in o.unit for run in (left, right) for o in run.numbers()):
        ratios |= {ratio**power for ratio in ratios for power in (2, 3)}
    if stated != 0 and Fraction(exact) / stated in ratios - {1}:
        return True
    scaled = [_scaled(run, d) for d in {d for d, _ in named} for run in (left, right)]
    return any(a is not None and a == b for a, b in zip(scaled[::2], scaled[1::2], strict=True))


def _scaled(run: Run, dimension: int) -> Rational | None:
    """Value of a run with every operand in the smallest unit: 2 hours + 30 minutes."""
    operands = []
    for operand in run.operands:
        sizes = [size for d, size in sizes_of(operand.unit) if d == dimension]
        operands.append(replace(operand, value=operand.value * sizes[0]) if sizes else operand)
    try:
        return evaluate(Run(operands, run.operators))
    except UndefinedError:
        return None


def _converts(exact: Rational, stated: Rational, dimension: int, size: Rational) -> bool:
    return any(
        other != size and exact * other == stated * size
        for other in _DIMENSIONS[dimension].values()
    )


def converts(exact: Rational, stated: Rational, behind: str) -> bool:
    """Whether one value is the other in the unit whose name begins ``behind``, or a percentage."""
    unit = behind.strip()
    if unit[:1] == "%":
        return exact * 100 == stated
    return any(_converts(exact, stated, d, size) for d, size in sizes_of(unit))
