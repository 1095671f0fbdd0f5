"""Rounded on the way: estimates, and parts of a calculation replaced by their rounded values."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from grpo_guard.content.arithmetic.chains import Link
from grpo_guard.content.arithmetic.literals import as_written
from grpo_guard.content.arithmetic.notation import NUMBER
from grpo_guard.content.arithmetic.numbers import Rational, magnitude
from grpo_guard.content.arithmetic.side import ARITHMETIC, Side

# 15 is about 20, and 6 is not about 10.
_ROUGH: Final = Fraction(1, 3)
_PRODUCT: Final = Fraction(1, 2)  # 15 * 15 is not about 20 * 20
_PART: Final = Fraction(1, 100)
_MOST_PARTS: Final = 12
_MOST_ZEROS: Final = 30


def is_estimate(link: Link, exact: Rational, stated: Rational) -> bool:
    """``389 + 212 ≈ 400 + 200``: the left side, each operand rounded at its last digit but zeros.

    The same operation with as many operands, so that a changed digit is no rounding: ``2 + 2`` is
    not about ``2 + 3``.
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
    # With its brackets, units and signs it must be the same calculation.
    return bool(shift) and link.reader.again(left, ARITHMETIC, shift) == stated


def has_rounded_parts(link: Link, exact: Rational, stated: Rational) -> bool:
    """``345 / 7 × 3 = 49.29 × 3``: decimals that only the shorter right side has are rounded.

    By half of their last digit, and together by a hundredth of the value at most.
    """
    left, right = link.left, link.right
    gap = magnitude(exact - stated)
    if not 0 < len(right.operators) < len(left.operators) or gap > magnitude(exact) * _PART:
        return False
    parts = [(token, decimals) for token, decimals in right.literals if decimals]
    if not 0 < len(parts) <= _MOST_PARTS:
        return False
    written = {token.text for token in link.reader.tokens[left.at : left.end]}
    slack: Rational = 0
    for token, decimals in parts:
        text = link.reader.tokens[token].text
        digits = text.replace(".", "").lstrip("0")
        if text in written or len(digits) < (3 if digits[-1:] == "0" else 2):  # 1.0 is exact
            continue
        step = Fraction(1, 2 * 10**decimals)
        moved = [link.reader.again(right, ARITHMETIC, {token: by}) for by in (step, -step)]
        slack += max((magnitude(value - stated) for value in moved if value is not None), default=0)
    return gap <= slack


def _numbers(link: Link, side: Side) -> list[tuple[int, tuple[Rational, int] | None]]:
    """Place of each number of a side, with its value and decimals."""
    tokens = enumerate(link.reader.tokens[side.at : side.end], side.at)
    return [(at, as_written(token.text)) for at, token in tokens if token.kind == NUMBER]


def _last_place(value: Rational, decimals: int) -> Rational:
    """One unit of the last digit that is no trailing zero of a whole number."""
    place = Fraction(1, 10**decimals)
    for _ in range(_MOST_ZEROS if value and not decimals else 0):
        if value % (place * 10):
            break
        place *= 10
    return place
