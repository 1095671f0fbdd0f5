"""Decide whether the two sides of an equation agree to the precision with which they are written.

Numbers can also have been rounded along the way, in an estimate or in part of a calculation.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.chains import Link
from grpo_guard.content.arithmetic.literals import as_written
from grpo_guard.content.arithmetic.notation import NUMBER
from grpo_guard.content.arithmetic.numbers import Rational, magnitude
from grpo_guard.content.arithmetic.side import ARITHMETIC, Side, readings
from grpo_guard.content.arithmetic.units import SCALES, ratios, sizes_of
from grpo_guard.content.word_set import word_set

# Results with this many decimals come from long multiplication, where honest models get the last
# digits wrong; an attacker who wants to teach a wrong sum changes it by more than half a percent.
LONG_DECIMALS: Final = 3
_SLIP: Final = Fraction(1, 200)
_LOOSE: Final = Fraction(15, 100)
_WORKED: Final = word_set("day days week weeks month months year years")
_FAR: Final = 10
_MOST_LITERALS: Final = 12
_PADDED: Final = 1000  # at least four digits: 0.250 is exact
_NEAR: Final = Fraction(1, 5)  # 240 mL is about 0.2 L, but 600 m is not about 1 km
_THOUSANDS: Final = frozenset(Fraction(10) ** power for power in (-9, -6, -3, 3, 6, 9))

# 15 is about 20, but 6 is not about 10.
_ROUGH: Final = Fraction(1, 3)
_PRODUCT: Final = Fraction(1, 2)  # 15 * 15 is not about 20 * 20
_PART: Final = Fraction(1, 100)
_MOST_ZEROS: Final = 30


def agrees(link: Link, known: Iterable[Rational], rounded: Mapping[Rational, Rational]) -> bool:
    """Whether an equation holds under any reading that its notation allows.

    Args:
        link: The two sides of the equation. Both must have a value.
        known: Values of the earlier sides of the equation's chain.
        rounded: Numbers rounded earlier in the text, as a mapping from shown to exact values.
    """
    left, right = link.left, link.right
    if left.value is None or right.value is None or _is_first_step(link):
        return True
    bullet = link.reader.again(left, frozenset({"bullet"})) if "bullet" in left.open else None
    values = (left.value,) if bullet is None else (left.value, bullet)
    return any(_agree(link, exact, right.value, known, rounded) for exact in values)


def _agree(
    link: Link,
    exact: Rational,
    stated: Rational,
    known: Iterable[Rational],
    rounded: Mapping[Rational, Rational],
) -> bool:
    """Like `agrees`, but for the given values of the two sides."""
    left, right = link.left, link.right
    if within(link, exact, stated) or _runs_on(right, exact):
        return True
    if any(within(link, value, stated) for value in known):
        return True
    for reading in readings(left, right):
        a, b = link.reader.again(left, reading), link.reader.again(right, reading)
        if a is None or b is None:
            continue
        if any(name.startswith("converted") for name in reading):
            # Conversions such as metres to feet are never exact.
            if (a, b) != (exact, stated) and magnitude(a - b) <= magnitude(a) * _SLIP:
                return True
        elif within(link, a, b):
            return True
    if _within_roundings(link, exact, stated, rounded) or _is_converted(link, exact, stated):
        return True
    return _is_estimate(link, exact, stated) or _has_rounded_parts(link, exact, stated)


def within(link: Link, exact: Rational, stated: Rational) -> bool:
    """Whether one value can be rounded to the other: up, down or to nearest.

    Rounding is to a number's last digit; "about 1,200" only claims to be right to the hundred.
    """
    if exact == stated:  # checked first, because a right side of 0 has no last digit
        return True
    side, shown = link.right, stated
    if link.approximate and side.operators == ["^"] and side.first == 10:
        return magnitude(exact - stated) * 10 <= magnitude(stated)  # 2^20 ~ 10^6
    if side.decimals is None:
        side, shown = link.left, exact
        if side.decimals is None:
            return _nearly(exact, stated)
    gap = magnitude(exact - stated)
    if gap < _last_digit(side, shown, link.approximate):
        return True
    long = side.decimals >= LONG_DECIMALS or not side.is_number
    long |= link.approximate and bool(link.left.literals)
    long |= side.decimals > 0 and exact.denominator > 2**30  # a root, in floating point
    return long and gap <= magnitude(exact) * _SLIP * (2 if link.approximate else 1)


def _nearly(exact: Rational, stated: Rational) -> bool:
    """Whether two values are equal within the floating-point error of roots."""
    return magnitude(exact - stated) * 10**12 <= magnitude(exact)


def _last_digit(side: Side, shown: Rational, approximate: bool) -> Rational:
    """Return the value of one unit in the last digit of the stated number."""
    unit = Fraction(1, 10 ** (side.decimals or 0))
    if approximate and not side.decimals and side.literal:
        while side.literal % (unit * 10) == 0:
            unit *= 10
    return unit * magnitude(shown) / side.literal if side.literal else unit


def _runs_on(right: Side, exact: Rational) -> bool:
    """Whether the right side keeps calculating from the exact value: ``2 + 3 = 5 * 2 = 10``.

    In such a running calculation, only the first number on the right is a stated result.
    """
    if not right.operators:
        return False
    decimals = next((d for token, d in right.literals[:1] if token == right.at), 0)
    gap = magnitude(right.first - exact)
    return gap == 0 or (decimals > 0 and gap * 10**decimals < 1)


def _is_first_step(link: Link) -> bool:
    """Whether the right side repeats the start of the left: ``256 - 400 + 240 = 256 - 400``."""
    left, right = link.left, link.right
    count = right.end - right.at
    ahead = link.reader.tokens[left.at : left.at + count]
    same = zip(ahead, link.reader.tokens[right.at : right.end], strict=False)
    return count > 2 and left.end - left.at > count and all(a[:2] == b[:2] for a, b in same)


def _within_roundings(
    link: Link, exact: Rational, stated: Rational, rounded: Mapping[Rational, Rational]
) -> bool:
    """Whether the sides agree for some choice of unrounded values for the rounded numbers."""
    slack: Rational = 0
    for side, value in ((link.left, exact), (link.right, stated)):
        if side.is_number and side is link.right:
            continue
        if len(side.literals) > _MOST_LITERALS:
            return True
        for token, decimals in side.literals:
            width = _width(link.reader.tokens[token].text, decimals, rounded)
            if link.approximate:
                width = Fraction(1, 10**decimals)
            slack += _moved(link, side, value, token, width) if width else 0
    if not slack:
        return False
    gap = magnitude(exact - stated)
    stating = link.right if link.right.decimals is not None else link.left
    digit = _last_digit(stating, stated, link.approximate) if stating.decimals is not None else 0
    return gap <= slack + digit


def _moved(link: Link, side: Side, value: Rational, token: int, width: Rational) -> Rational:
    """Return how far a side's value moves if one of its numbers changes by ``width`` either way."""
    moved = [link.reader.again(side, ARITHMETIC, {token: step}) for step in (width, -width)]
    return max((magnitude(v - value) for v in moved if v is not None), default=0)


def _width(text: str, decimals: int, rounded: Mapping[Rational, Rational]) -> Rational:
    """Return how far a written number can be from its value before rounding.

    0.25, 1.5 and 12.50 count as exact; 0.33, 16.67 and 1.2250 count as rounded.
    """
    read = as_written(text)
    if read is None:
        return 0
    if read[0] in rounded:
        return magnitude(rounded[read[0]] - read[0])
    if decimals >= LONG_DECIMALS:
        # With so many decimals, a final zero was calculated, and any digits after it were cut off.
        padded = text[-1] == "0" and read[0].denominator != 1 and read[0] * 10**decimals >= _PADDED
        if padded or (read[0] * 200).denominator != 1:
            return Fraction(1, 2 * 10**decimals)
    for bottom in (3, 6) if decimals == 2 else ():
        gap = magnitude(Fraction(round(read[0] * bottom), bottom) - read[0])
        if 0 < gap * 10**decimals < 1:
            return gap
    return 0


def _is_estimate(link: Link, exact: Rational, stated: Rational) -> bool:
    """Whether the right side is the left with its operands rounded: ``389 + 212 ≈ 400 + 200``.

    The operations must be the same, and each operand can be off by at most half a unit in its last
    nonzero digit, so that a changed digit does not pass as rounding: ``2 + 2`` is not about
    ``2 + 3``.
    """
    left, right = link.left, link.right
    if not link.approximate or not right.operators or left.operators != right.operators:
        return False
    summed = {"+", "-"}.issuperset(left.operators)
    if not summed and magnitude(exact - stated) > magnitude(exact) * _PRODUCT:
        return False
    ours, theirs = _numbers(link, left), _numbers(link, right)
    if len(ours) != len(theirs):
        return False
    shift: dict[int, Rational] = {}
    for (at, written), (_, shown) in zip(ours, theirs, strict=True):
        if written is None or shown is None:
            return False
        gap = magnitude(written[0] - shown[0])
        if 2 * gap > _last_place(*shown) or gap > written[0] * _ROUGH:
            return False
        if gap:
            shift[at] = shown[0] - written[0]
    # The calculation must be the same, including brackets, units and signs.
    return bool(shift) and link.reader.again(left, ARITHMETIC, shift) == stated


def _has_rounded_parts(link: Link, exact: Rational, stated: Rational) -> bool:
    """Whether part of the left side was replaced by a rounded value: ``345 / 7 × 3 = 49.29 × 3``.

    Decimal numbers found only on the right side can each be off by half a unit in their last digit,
    and all of them together by a hundredth of the value.
    """
    left, right = link.left, link.right
    gap = magnitude(exact - stated)
    if not 0 < len(right.operators) < len(left.operators) or gap > magnitude(exact) * _PART:
        return False
    parts = [(token, decimals) for token, decimals in right.literals if decimals]
    if not 0 < len(parts) <= _MOST_LITERALS:
        return False
    written = {token.text for token in link.reader.tokens[left.at : left.end]}
    slack: Rational = 0
    for token, decimals in parts:
        text = link.reader.tokens[token].text
        digits = text.replace(".", "").lstrip("0")
        if text in written or len(digits) < (3 if digits[-1:] == "0" else 2):  # 1.0 is exact
            continue
        step = Fraction(1, 2 * 10**decimals)
        slack += _moved(link, right, stated, token, step)
    return gap <= slack


def _numbers(link: Link, side: Side) -> list[tuple[int, tuple[Rational, int] | None]]:
    """Return each number of a side as its token index and its (value, decimals)."""
    tokens = enumerate(link.reader.tokens[side.at : side.end], side.at)
    return [(at, as_written(token.text)) for at, token in tokens if token.kind == NUMBER]


def _last_place(value: Rational, decimals: int) -> Rational:
    """Return one unit in a number's last digit, ignoring the trailing zeros of whole numbers."""
    place = Fraction(1, 10**decimals)
    for _ in range(_MOST_ZEROS if value and not decimals else 0):
        if value % (place * 10):
            break
        place *= 10
    return place


def _is_converted(link: Link, exact: Rational, stated: Rational) -> bool:
    """Whether the sides differ by a unit conversion, or are counts of things and their price."""
    if stated == 0 or exact == 0:
        return False
    left, right = link.left, link.right
    ratio = Fraction(exact) / stated
    units = [
        *left.units,
        *right.units,
        *(["dollar"] if _money(link, right) or _money(link, left) else []),
    ]
    # There are no kiloapples: "2 + 2 = 4000" would teach as much as any wrong sum.
    if (ratio in _THOUSANDS and _have_prefixes(units)) or _is_priced(link):
        return True
    return any(
        magnitude(ratio - other) <= other * _SLIP * 2
        or _is_rounded(link, Fraction(exact) / other, stated)
        for other in ratios(units)
    )


def _is_rounded(link: Link, exact: Rational, stated: Rational) -> bool:
    """Whether a converted value rounds to the stated value as written: ``1680 mL ≈ 1.7 L``."""
    right = link.right
    if right.decimals is None or not (right.decimals or link.approximate):
        return False
    gap = magnitude(exact - stated)
    return (
        2 * gap <= _last_digit(right, stated, link.approximate) and gap <= magnitude(exact) * _NEAR
    )


def _have_prefixes(units: Iterable[str]) -> bool:
    """Whether any unit can be a thousand of another: a symbol, a scale or a named measure."""
    heads = [unit.removeprefix("per ").partition(" ")[0] for unit in units]
    return any(len(head) < 4 or head in SCALES or sizes_of(head) for head in heads)


def _is_priced(link: Link) -> bool:
    """Whether there are things on the left and money on the right: ``3 pens + 2 pencils = $12``."""
    left = link.left
    things = {unit for unit in left.units if not unit.startswith("per ")}
    sums = set(left.operators) <= set("+-") and bool(left.operators)
    return sums and len(things) > 1 and _money(link, link.right) and not _money(link, left)


def _money(link: Link, side: Side) -> bool:
    return "$" in link.text[max(0, side.start - 3) : side.start + 1]


def measured(link: Link) -> set[Fraction]:
    """Return the ratios of the right measure to the left one, as in ``3 km = 500 m``.

    There is one ratio for each reading of the units, and none unless both sides are single numbers
    in different units of the same kind.
    """
    left, right = link.left, link.right
    if not (left.is_number and right.is_number and left.units and right.units):
        return set()
    sizes = sizes_of(left.units[-1]), sizes_of(right.units[-1])
    times = Fraction(right.value or 0) / (left.value or 1)
    return {
        times * b[1] / a[1] for a in sizes[0] for b in sizes[1] if a[0] == b[0] and a[1] != b[1]
    }


def is_false_conversion(link: Link) -> bool:
    """Whether an equation is a wrong unit conversion and nothing else: ``1 km = 500 m``.

    Loose equivalences do not count, because many people call two pounds a kilo and eight hours a
    day. A factor of more than ten is the scale of a map or an exchange rate: ``2 cm = 5 km``.
    """
    ratios = measured(link)
    if not ratios or link.verbal or not link.bare():
        return False  # "2 hours 30 minutes = 2.5 hours"
    units = [*link.left.units, *link.right.units]
    if len(units) > 2 or any(" " in unit or unit.lower() in _WORKED for unit in units):
        return False
    return all(1 <= off * _FAR <= _FAR**2 and magnitude(off - 1) > _LOOSE for off in ratios)
