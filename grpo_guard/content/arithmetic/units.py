"""Words behind a number: units, those that change its value, and what one unit is in another."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.expression import Operand, Run, UndefinedError, evaluate
from grpo_guard.content.arithmetic.notation import Rational, vocabulary

MAX_UNIT_WORDS: Final = 8
SCALES: Final = {
    "dozen": 12,
    "dozens": 12,
    "score": 20,
    "hundred": 100,
    "thousand": 1000,
    "thousands": 1000,
    "k": 1000,
    "K": 1000,
    "million": 10**6,
    "M": 10**6,
    "billion": 10**9,
    "pair": 2,
    "pairs": 2,
}
# Behind a number these change its value: nothing can be said of the calculation.
SPOILING: Final = vocabulary(
    "squared cubed root mod xor modulo choose factorial pi e i remainder base power"
)
# These end what is said of a number; an operator behind them has another left operand.
STOPPING: Final = SPOILING | vocabulary(
    "than twice half double triple thrice third quarter to over from less fewer if when where "
    "because so since which then but and negative about average log ln sin cos tan max min exp "
    "hence thus therefore"
)
# Letters written straight behind a number that are units and not unknowns.
ATTACHED: Final = vocabulary(
    "g kg mg m cm mm km h hr hrs min mins s sec secs ml mL l L lb lbs oz ft in yd mi mph k K kB MB "
    "GB am pm th st nd rd cents dollars kW Hz cal kcal degrees"
)
_WORD: Final = re.compile(r"[^\s-]++")


def is_unit(operand: Operand, text: str, touches: bool) -> bool:
    """Whether these words only say of what there are so many; records them."""
    if text not in ATTACHED and text[0] != "-":
        if touches and operand.group is None:
            return False
        if len(text) == 1:
            return False
    words = _WORD.findall(text[:400])
    if len(words) > MAX_UNIT_WORDS or not STOPPING.isdisjoint(map(str.lower, words)):
        return False
    if operand.scale == 1:
        operand.scale = SCALES.get(words[0], 1)
    # A letter apart may be a unit, one that touches the number may be an unknown.
    apart = " " if len(text) == 1 and not touches else ""
    operand.unit = f"{operand.unit} {text}".strip()[:80] + apart
    return True


def spoils(text: str, touches: bool) -> bool:
    """Words that change the value, unlike a sentence that merely goes on."""
    first = _WORD.match(text)
    return touches or len(text) == 1 or (first is not None and first[0].lower() in SPOILING)


def is_remark(text: str) -> bool:
    """Whether words in brackets behind a number may be skipped."""
    return (STOPPING - {"from", "to"}).isdisjoint(_WORD.findall(text.lower()[:200]))


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
_MEASURES: Final = frozenset(unit for sizes in _DIMENSIONS for unit in sizes)
_LETTERS: Final = re.compile(r"[A-Za-z]++")


def sizes_of(unit: str) -> list[tuple[int, Rational]]:
    """Dimension and size of every measure that these words name."""
    found = []
    for word in _LETTERS.findall(unit[:80].lower()):
        for name in (word, word.removesuffix("s"), word.removesuffix("es")):
            if name in _MEASURES:
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
