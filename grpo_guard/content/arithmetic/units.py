"""Words after a number: units, words that change the number's value, and unit conversions."""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

from grpo_guard.content.arithmetic.numbers import Rational
from grpo_guard.content.word_set import word_set

MAX_UNIT_WORDS: Final = 6
SCALES: Final = {
    "dozen": 12, "dozens": 12, "score": 20, "pair": 2, "pairs": 2, "hundred": 100, "thousand": 1000,
    "thousands": 1000, "k": 1000, "K": 1000, "million": 10**6, "M": 10**6, "billion": 10**9,
}  # fmt: skip
# After a number, these words change its value, so the calculation cannot be checked.
SPOILING: Final = word_set(
    "squared cubed root mod xor modulo choose factorial pi e i remainder power"
)
# These words end the phrase about a number; an operator after them has a different left operand.
STOPPING: Final = SPOILING | word_set(
    "than twice half double triple thrice third quarter to over from less fewer if when where "
    "because so since which then but and negative about average log ln sin cos tan max min exp "
    "hence thus therefore"
)
# Letters directly after a number that are units rather than unknowns.
ATTACHED: Final = word_set(
    "g kg mg m cm mm km h hr hrs min mins s sec secs ml mL l L lb lbs oz ft in yd mi mph k K kB MB "
    "GB am pm th st nd rd cents dollars kW Hz cal kcal degrees"
)
_SYMBOLS: Final = ATTACHED | word_set(
    "kJ MJ eV keV MeV GeV kN kV mV mW MW kHz MHz GHz Pa kPa MPa atm mol mmol mA mT Wb nm pm dm fm "
    "dL ms ns cd sr dB sq cu pt qt pc pcs USD EUR GBP RMB INR CAD AUD TB BTU RPM TV CD DVD"
)
_SHORT: Final = _SYMBOLS | word_set(
    "a an of in on at by as us we he it is to up no the so do go if me my or be am ok vs "
    "es el la le de un il en se da os er zu im ja et ou au su lo al si na po"  # other languages
)
# Before a number, these words turn its value into a different one, whatever is in between.
FUNCTIONS: Final = word_set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt cbrt abs sgn "
    "mod gcd lcm det deg dim var cov std sup inf lim floor ceil"
)
_MOST_CAPITALS: Final = 4
# In Chinese. After a number: squared, to the power, times, parts of ten; before a number: root,
# sine, logarithm, absolute value, angle, ordinal, minus.
_CALCULATING: Final = re.compile(
    "(?:平方|立方|次方|次幂|倍|成|折|分之|阶)|.{0,80}(?:根号|平方|立方|弦|切|对数|绝对值|角|第|负|模)"
)
_JOINTS: Final = str.maketrans("-/~.", "    ")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*+['’]?")


def is_plain(word: str) -> bool:
    """Whether a word next to a number can be prose or a unit.

    A variable (``p1``, ``di``, ``AB``, ``v_0``, ``λ``) or a function (``cos``) cannot: next to or
    within a side of an equation, it is part of the calculation.
    """
    return _is_plain(word[:80])


@lru_cache(maxsize=4096)
def _is_plain(word: str) -> bool:
    word = word.rstrip("²³")
    if not _WORD.fullmatch(word) or word.lower() in FUNCTIONS:
        return False
    if not word.isascii() and not word.islower() and not word.istitle():
        return _CALCULATING.fullmatch(word) is None
    if len(word) < 3:
        return word in _SYMBOLS or word.lower() in _SHORT
    return not (word.isupper() and len(word) <= _MOST_CAPITALS) or word in _SYMBOLS


def unit_words(text: str) -> Sequence[str] | None:
    """Return the words of a unit, or None if they mean something else or change the value."""
    return _unit_words(text[:400])


@lru_cache(maxsize=2048)
def _unit_words(text: str) -> tuple[str, ...] | None:
    words = text.translate(_JOINTS).split()
    if len(words) > MAX_UNIT_WORDS or not STOPPING.isdisjoint(map(str.lower, words)):
        return None
    # "16/3 into the equation bc = 32": a two-letter name is not something to count.
    return tuple(words) if all(map(is_plain, words)) else None


def is_remark(text: str) -> bool:
    """Whether words in brackets after a number can be skipped as a remark."""
    return (STOPPING - {"from", "to"}).isdisjoint(text.lower()[:200].replace("-", " ").split())


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
# Units of data, where capitals matter: "Mb" can be either bits or bytes.
_DATA: Final = {
    **dict.fromkeys(("bit", "bits"), 1),
    **dict.fromkeys(("byte", "bytes"), 8),
    **{
        prefix + unit: size * 1000**power
        for power, prefix in enumerate("kMGT", 1)
        for unit, size in (("bit", 1), ("bits", 1), ("bps", 1), ("B", 8))
    },
    "KB": 8000,
}
_MEASURES: Final = {
    unit + plural: [(d, sizes[unit]) for d, sizes in enumerate(_DIMENSIONS) if unit in sizes]
    for plural in ("es", "s", "")  # "" last: a word that exists by itself is not a plural
    for units in _DIMENSIONS
    for unit in units
}
_LETTERS: Final = re.compile(r"[a-z]++")


def sizes_of(unit: str) -> Sequence[tuple[int, Rational]]:
    """Return the (dimension, size) of every measure named by the words of a unit."""
    return _sizes_of(unit[:80])


@lru_cache(maxsize=2048)
def _sizes_of(unit: str) -> tuple[tuple[int, Rational], ...]:
    words = _LETTERS.findall(unit.lower())
    data = [(len(_DIMENSIONS), _DATA[word]) for word in unit.split() if word in _DATA]
    return (*(size for word in words if word in _MEASURES for size in _MEASURES[word]), *data)


def ratios(units: list[str]) -> set[Fraction]:
    """Return the factors by which a value can change when converted between the given units."""
    sizes = [(d, Fraction(size)) for unit in units for d, size in sizes_of(unit)][:12]
    found = {a[1] / b[1] for a in sizes for b in sizes if a[0] == b[0]}
    if any(unit.startswith("per ") for unit in units):  # 10 m/s = 36 km/h
        found |= {a * b for a in found for b in found}
    if "power" in units:
        found |= {ratio**exponent for ratio in found for exponent in (2, 3)}
    return found - {1}
