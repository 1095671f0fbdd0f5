"""Values of expressions made of literals alone, by reading the tree; nothing is executed."""

from __future__ import annotations

import ast
from typing import Final

MAX_TEXT: Final = 10_000
MAX_STEPS: Final = 200


def text_of(node: ast.expr, steps: int = MAX_STEPS) -> str | None:
    """The string that an expression of literals spells: ``"__im" + "port__"``, ``chr(101)``,
    ``"lave"[::-1]``, ``"".join([...])``. None where it depends on anything else or is too long."""
    if steps <= 0:
        return None
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bytes):
            return node.value[:MAX_TEXT].decode("latin-1")
        return node.value[:MAX_TEXT] if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp):
        return _added(node, steps)
    if isinstance(node, ast.Subscript):
        return _sliced(node, steps)
    if isinstance(node, ast.Call):
        return _called(node, steps)
    if isinstance(node, ast.JoinedStr):
        return _joined(node.values, "", steps)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, steps - 1)
    return None


def integer_of(node: ast.expr) -> int | None:
    """A literal integer, also a negative one."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer_of(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def integers_of(node: ast.expr) -> list[int] | None:
    """A literal list or tuple of integers."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    values = [integer_of(e) for e in node.elts[:MAX_TEXT]]
    return [v for v in values if v is not None] if None not in values else None


def _added(node: ast.BinOp, steps: int) -> str | None:
    if not isinstance(node.op, ast.Add):
        return None
    # Chains lean left: unrolled here, they cost no recursion.
    parts: list[ast.expr] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
        parts.append(left.right)
        left = left.left
        if len(parts) > MAX_STEPS:
            return None
    return _joined([left, *reversed(parts)], "", steps)


def _joined(parts: list[ast.expr], between: str, steps: int) -> str | None:
    texts: list[str] = []
    for part in parts[: MAX_STEPS + 1]:
        text = text_of(part, steps // 4)
        if text is None:
            return None
        texts.append(text)
    return between.join(texts)[:MAX_TEXT]


def _sliced(node: ast.Subscript, steps: int) -> str | None:
    text = text_of(node.value, steps - 1)
    if text is None:
        return None
    if isinstance(node.slice, ast.Slice):
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        numbers = [None if e is None else integer_of(e) for e in ends]
        if any(e is not None and n is None for e, n in zip(ends, numbers, strict=True)):
            return None
        return None if numbers[2] == 0 else text[slice(*numbers)]
    at = integer_of(node.slice)
    return text[at] if at is not None and -len(text) <= at < len(text) else None


def _called(node: ast.Call, steps: int) -> str | None:
    function = node.func
    if isinstance(function, ast.Name) and len(node.args) == 1:
        if function.id == "chr":
            value = integer_of(node.args[0])
            return chr(value) if value is not None and 0 <= value < 0x110000 else None
        if function.id in ("str", "reversed"):
            text = text_of(node.args[0], steps - 1)
            return text if text is None or function.id == "str" else text[::-1]
        if function.id in ("bytes", "bytearray"):
            numbers = integers_of(node.args[0])
            return None if numbers is None else "".join(map(chr, (n & 255 for n in numbers)))
        return None
    if not isinstance(function, ast.Attribute):
        return None
    return _method(function, node.args, steps)


def _method(function: ast.Attribute, args: list[ast.expr], steps: int) -> str | None:
    name = function.attr
    if name == "fromhex" and args:
        text = text_of(args[0], steps - 1)
        try:
            return bytes.fromhex(text or "").decode("latin-1") or None
        except ValueError:
            return None
    text = text_of(function.value, steps - 1)
    if text is None:
        return None
    if name in ("decode", "encode", "strip", "lower", "upper", "swapcase"):
        changed = {"lower": text.lower, "upper": text.upper, "swapcase": text.swapcase}
        return changed[name]() if name in changed else text
    if name == "join" and len(args) == 1:
        if isinstance(args[0], ast.List | ast.Tuple):
            return _joined(args[0].elts, text, steps)
        inner = text_of(args[0], steps - 1)
        return None if inner is None else text.join(inner)[:MAX_TEXT]
    if name == "replace" and len(args) == 2:
        old, new = text_of(args[0], steps - 1), text_of(args[1], steps - 1)
        return None if old is None or new is None or not old else text.replace(old, new)[:MAX_TEXT]
    return None
