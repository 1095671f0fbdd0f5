"""Bounded exact arithmetic: rational if possible, otherwise to fifteen digits."""

import math
from fractions import Fraction
from typing import Final, TypeAlias

Rational: TypeAlias = int | Fraction
MAX_BITS: Final = 4096  # per numerator or denominator, to stop towers of exponents


class UndefinedError(ArithmeticError):
    """Raised for division by zero, a root of a negative number, or an absurdly large value."""


def magnitude(value: Rational) -> Rational:
    """Return the absolute value."""
    return -value if value < 0 else value


def checked(value: Rational) -> Rational:
    """Return the value unchanged if its size is reasonable.

    Raises:
        UndefinedError: the value has more than `MAX_BITS` bits.
    """
    if isinstance(value, int) and value.bit_length() <= MAX_BITS:
        return value
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise UndefinedError("too large")
    return value


def divide(top: Rational, bottom: Rational) -> Rational:
    """Return the exact quotient, as an int if possible.

    Raises:
        UndefinedError: the divisor is zero, or the quotient is too large.
    """
    if bottom == 0:
        raise UndefinedError("division by zero")
    if isinstance(top, int) and isinstance(bottom, int) and top % bottom == 0:
        return top // bottom
    value = Fraction(top) / bottom
    return checked(value.numerator if value.denominator == 1 else value)


def power(base: Rational, exponent: Rational) -> Rational:
    """Return a power, exact if the exponent is whole or the root is rational.

    Raises:
        UndefinedError: 0 raised to an exponent that is not positive, an even root of a negative
            base, or a value that is too large.
    """
    if base == 0 and exponent <= 0:
        raise UndefinedError("zero to no positive power")
    if exponent.denominator != 1:
        if exponent.denominator > 100:
            return _approximately(lambda: float(base) ** float(exponent))
        return power(root(base, exponent.denominator), exponent.numerator)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if magnitude(exponent) * bits > MAX_BITS:
        raise UndefinedError("too large")
    value = Fraction(base) ** int(exponent)
    return value.numerator if value.denominator == 1 else value


def root(value: Rational, index: int = 2) -> Rational:
    """Return the ``index``-th root, exact if it is rational.

    Raises:
        UndefinedError: an even root of a negative number, an index outside [1, 100], or a value
            that is too large.
    """
    if not 1 <= index <= 100 or (value < 0 and index % 2 == 0):
        raise UndefinedError("no real root")
    sign = -1 if value < 0 else 1
    value = magnitude(value)
    parts = [_whole_root(part, index) for part in (value.numerator, value.denominator)]
    if parts[0] is not None and parts[1] is not None:
        return sign * divide(parts[0], parts[1])
    return sign * _approximately(lambda: float(value) ** (1 / index))


def choose(total: Rational, taken: Rational) -> int:
    """Return the binomial coefficient "``total`` choose ``taken``".

    Raises:
        UndefinedError: the arguments are not whole numbers with 0 <= taken <= total <= 200.
    """
    whole = total.denominator == taken.denominator == 1
    if not whole or not 0 <= taken <= total <= 200:
        raise UndefinedError("no binomial")
    return math.comb(int(total), int(taken))


def logarithm(value: Rational, base: Rational) -> Rational:
    """Return the logarithm of a value to the given base, exact if it is whole.

    Raises:
        UndefinedError: the logarithm is undefined, or a number is too large.
    """
    if value <= 0 or base <= 0 or base == 1:
        raise UndefinedError("no logarithm")
    near = _approximately(lambda: math.log(value) / math.log(base))
    return round(near) if power(base, round(near)) == value else near


def _whole_root(value: int, index: int) -> int | None:
    if value.bit_length() > 900:
        raise UndefinedError("too large")
    near = math.isqrt(value) if index == 2 else round(float(value) ** (1 / index))
    return next((n for n in (near - 1, near, near + 1) if n >= 0 and n**index == value), None)


def _approximately(calculate: object) -> Fraction:
    try:
        value = calculate()  # type: ignore[operator]
        return Fraction(value)
    except (OverflowError, ValueError, TypeError, ZeroDivisionError):
        raise UndefinedError("no real value, or one that is too large") from None
