"""Numbers that others sent, as a trainer may compute with them: plain floats in a declared range.

What is finite in Python may be infinite in a trainer's float32, and what is greater than 0 may be
0 there: a temperature of 1e-40 makes all weights NaN as surely as NaN does. So no adapter hands on
a sender's number as it came; each names the range that the number can honestly be in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Final

LOG_PROBS: Final = (-80.0, 0.01)
"""Of a sampled token. Nobody samples what has less than e^-80, and e^80 is still a float32: losses
weigh by ratios of probabilities. Rounding may leave a certain token's a little above 0."""
_LEAST_NORMAL: Final = 2.0**-126  # of float32; whatever is nearer to 0 is 0


def number_from(value: Any, least: float = -math.inf, most: float = math.inf) -> float | None:
    """A finite number within [least, most] as a float; None for anything else. Never raises.

    A number of Python, NumPy or torch, also as an array or tensor without dimensions. True, "1",
    and what merely converts to a number are none.
    """
    try:
        if getattr(value, "ndim", None) == 0 and not isinstance(value, Real):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        number = float(value)
    except Exception:  # an integer beyond all floats; objects that refuse
        return None
    if not (math.isfinite(number) and least <= number <= most):
        return None
    return number if abs(number) >= _LEAST_NORMAL else 0.0


def log_probs_from(values: Any, length: int) -> list[float] | None:
    """Log-probs of sampled tokens, [length], each within `LOG_PROBS`; None where they are none.

    Never raises. A generator is none either: it can be read once, and has no end.
    """
    values = listed(values, length)
    if values is None:
        return None
    found = [number_from(value, *LOG_PROBS) for value in values]
    numbers = [number for number in found if number is not None]
    return numbers if len(numbers) == length else None


def listed(values: Any, length: int) -> Sequence[Any] | None:
    """A list or tuple of ``length``, or an array's or tensor's; None for anything else.

    Never raises, and copies no array of another length.
    """
    try:
        if getattr(values, "ndim", None) == 1 and len(values) == length:
            values = values.tolist()
        fits = isinstance(values, list | tuple) and len(values) == length
    except Exception:
        return None
    return values if fits else None
