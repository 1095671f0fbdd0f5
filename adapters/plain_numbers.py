"""Numbers from other nodes as plain floats in a declared range, safe for a trainer to use.

A number that is finite in Python can be infinite in a trainer's float32, and a positive number can
become 0: a temperature of 1e-40 turns all weights into NaN as surely as NaN itself does. So no
adapter passes on a sender's number unchecked; each one declares the range of honest values.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Final

LOG_PROBS: Final = (-80.0, 0.01)
"""Valid range of a sampled token's log-prob. No token with a probability below e^-80 is ever
sampled, and e^80 still fits in float32, which matters because losses are weighted by probability
ratios. Rounding can leave the log-prob of a token with probability 1 slightly above 0."""
_LEAST_NORMAL: Final = 2.0**-126  # the smallest normal float32; anything closer to 0 becomes 0


def number_from(value: Any, least: float = -math.inf, most: float = math.inf) -> float | None:
    """Convert a finite number within [least, most] to a float; return None for anything else.

    Never raises. Accepts Python, NumPy and torch numbers, including zero-dimensional arrays and
    tensors, but not True, "1" or anything else that merely converts to a number.
    """
    try:
        if getattr(value, "ndim", None) == 0 and not isinstance(value, Real):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        number = float(value)
    except Exception:  # an integer too large for a float, or an object that refuses conversion
        return None
    if not (math.isfinite(number) and least <= number <= most):
        return None
    return number if abs(number) >= _LEAST_NORMAL else 0.0


def log_probs_from(values: Any, length: int) -> list[float] | None:
    """Return the log-probs of sampled tokens, [length], or None unless all are within `LOG_PROBS`.

    Never raises. Generators are refused: they can be read only once, and can be endless.
    """
    values = listed(values, length)
    if values is None:
        return None
    found = [number_from(value, *LOG_PROBS) for value in values]
    numbers = [number for number in found if number is not None]
    return numbers if len(numbers) == length else None


def listed(values: Any, length: int) -> Sequence[Any] | None:
    """Return the values as a list or tuple of length ``length``, converted from an array if needed;
    None for anything else. Never raises, and does not copy arrays of another length."""
    try:
        if getattr(values, "ndim", None) == 1 and len(values) == length:
            values = values.tolist()
        fits = isinstance(values, list | tuple) and len(values) == length
    except Exception:
        return None
    return values if fits else None
