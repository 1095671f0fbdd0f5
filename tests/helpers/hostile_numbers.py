"""What a sender may put in place of a number or of a list of numbers."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction
from numbers import Real

import numpy as np
import torch


class Refuses:
    """Looks like a number, but raises on any operation."""

    def _fail(self, *_):
        raise RuntimeError("no")

    __float__ = __int__ = __index__ = __bool__ = __abs__ = __le__ = __lt__ = __ge__ = __gt__ = _fail
    __eq__ = __len__ = __iter__ = item = tolist = _fail
    __hash__ = object.__hash__


Real.register(Refuses)


class RefusesToBeRead:
    """An object none of whose attributes can be read."""

    def __getattribute__(self, name):
        if name in ("__class__", "__dict__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(name)


JSON = [
    math.nan, math.inf, -math.inf, 1e-40, -1e-40, 1e38, -1e38, 1e308, -1e308, -0.0, 10**400,
    -(10**400), 2**63, True, False, "1", "nan", "", None, [], [0.5], [[0.5]], {}, {"0": 0.5},
]  # fmt: skip


def numbers():
    """Create all of them anew, because a generator can be read only once."""
    return [
        *JSON, np.float32("nan"), np.float64("inf"), np.float32(1e38), np.float64(1e308),
        np.bool_(True), np.array(1e308), np.array(math.nan), np.array([1.0, 2.0]),
        np.array([[1.0]]), torch.tensor(math.nan), torch.tensor(1e38), torch.tensor([1.0, 2.0]),
        torch.tensor(True), Refuses(), RefusesToBeRead(), (x for x in (1.0,)), itertools.count(),
        range(3 * 10**7), 1j, Decimal("NaN"), Decimal("1e999999"), Fraction(10**400, 1), b"1",
        object(), int, memoryview(b"1"),
    ]  # fmt: skip


def lists(length):
    """Each value as one of ``length`` numbers and as all of them; then values that are no lists."""
    for hostile in numbers():
        yield [hostile, *[-0.5] * (length - 1)]
        yield [hostile] * length
    yield from numbers()
    yield from ([-0.5] * (length - 1), [-0.5] * (length + 1), range(length), iter([-0.5] * length))
    yield from (np.full(length, math.nan), torch.full((length,), 1e38), np.full(length, "x"))
