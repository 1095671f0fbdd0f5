"""Values that no field of a completion should have, and rows that contain some of them."""

import math
from decimal import Decimal

import numpy as np
import torch


class Unprintable:
    """Raises on any access."""

    def _fail(self, *_):
        raise RuntimeError("no")

    __repr__ = __str__ = __iter__ = __len__ = __float__ = __int__ = __index__ = _fail
    __eq__ = __bool__ = _fail
    __hash__ = object.__hash__


class UnprintableList(list):
    def __repr__(self):
        raise ValueError("no")


class Liar(dict):
    """A mapping whose items differ from its contents."""

    def items(self):
        raise KeyError("items")

    def get(self, key, default=None):
        raise OverflowError(key)

    def __repr__(self):
        raise RuntimeError("no")


class Words(str):
    def __repr__(self):
        raise RuntimeError("no")

    def encode(self, *_, **__):
        raise RuntimeError("no")


def deep(levels=5000, inner="x", mapping=False):
    for _ in range(levels):
        inner = {"content": inner, "role": "user"} if mapping else [inner]
    return inner


def cyclic(mapping=False):
    loop = {"role": "user"} if mapping else []
    if mapping:
        loop["content"] = [loop]
    else:
        loop.append(loop)
    return loop


def wide(levels=40):
    """2 ** levels parts in a few bytes: each level lists the previous one twice."""
    part = ["x"]
    for _ in range(levels):
        part = [part, part]
    return part


def fails():
    yield 1
    raise RuntimeError("no")


def _array(*values):
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


HUGE = 10**5000
SCALARS = [
    None, True, False, 0, -1, 3, 2**63, 2**70, HUGE, -HUGE, 0.5, math.nan, math.inf, -math.inf,
    1e308, 1j, Decimal("NaN"), Decimal("1e999999"), b"bytes", b"\xff" * 10, "", "7", "\ud800",
    "a\0b", "\x1b[2J", "x" * 10_000, Words("words"),
]  # fmt: skip
ARRAYS = [
    np.int64(3), np.uint64(2**64 - 1), np.float32(0.5), np.float64("nan"), np.str_("seven"),
    np.bool_(True), np.datetime64("2020-01-01"), np.array(3), np.array([]), np.array([1, 2]),
    np.array([1.5]), np.ones((2, 2)), np.array(["a"]), _array({"role": "user"}, HUGE),
    np.array(None), torch.tensor(3), torch.tensor([1, 2]), torch.ones(2, 2), torch.tensor([]),
    torch.tensor(float("nan")), torch.tensor([1.5]),
]  # fmt: skip
SHAPES = [
    [], {}, (), [[]], [None], [HUGE], [-1], [2**40], [1.0], [True], ["1"], [1, [2]], {1: 2}, {1, 2},
    [math.nan], [math.inf], [-1000.0], ["x"], [1] * 5_000, iter([1]), range(3), fails(), object(),
    Unprintable(), UnprintableList([1]), UnprintableList([{"role": "user", "content": "x"}]),
    Liar(), Liar(role="user", content="x"), int, len, deep(), deep(mapping=True), cyclic(),
    cyclic(mapping=True), wide(), [Unprintable()], [Liar(role="user", content="x")],
]  # fmt: skip
CHATS = [
    [{"role": "user", "content": value}]
    for value in (*SCALARS, *SHAPES, *ARRAYS)
] + [
    [{"role": "assistant", "content": "x", "tool_calls": value}] for value in (*SHAPES, HUGE)
] + [
    [{"role": value, "content": "x"}] for value in (None, HUGE, Words("user"), "\ud800", deep())
] + [[{"role": "user", "content": "x", key: "x"}] for key in (HUGE, None, Words("k"))] + [
    _array({"role": "user", "content": "x"}), [[{"role": "user", "content": "x"}]],
    [{"role": "user", "content": [{"type": "text", "text": v}]} for v in (HUGE, deep(), None)],
]  # fmt: skip
EVERYTHING = [*SCALARS, *ARRAYS, *SHAPES, *CHATS]
