"""Values of expressions made of literals alone, by reading the tree; nothing is executed.

What is built is bounded before it is built: ``"aaa...".replace("a", text)`` of two texts of the
longest length would be 100 MB, and a program has room for hundreds of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Final

from grpo_guard.content.code.ciphers import shifted, swapped
from grpo_guard.content.code.names import words

MAX_TEXT: Final = 10_000
MAX_STEPS: Final = 80  # of about five frames each
MAX_BUILT: Final = 4_000_000
METHODS: Final = words(
    "fromhex decode encode strip lower upper swapcase casefold format join replace translate"
)
_FIELD: Final = re.compile(r"%[-+ #0-9.]{0,8}[sdcr]")
_BRACES: Final = re.compile(r"\{\d{0,2}(?::[cs])?\}")


class Folder:
    """Reads the strings that expressions spell.

    Args:
        known: Names that stand for one literal in the whole program.
    """

    def __init__(self, known: Mapping[str, ast.expr] | None = None) -> None:
        self.known = known or {}
        # Whether there was more to read than any honest program spells.
        self.spent = False
        self._left = MAX_BUILT
        # Texts of expressions by identity: each is built once, however many lead to it.
        self._read: dict[int, str | None] = {}

    def text(self, node: ast.expr, steps: int = MAX_STEPS) -> str | None:
        """The string that an expression of literals spells: ``"__im" + "port__"``, ``chr(101)``,
        ``"lave"[::-1]``, ``"".join([...])``. None where it depends on anything else. A text of more
        than `MAX_TEXT` characters is cut.
        """
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bytes):
                return node.value[:MAX_TEXT].decode("latin-1")
            return node.value[:MAX_TEXT] if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            value = self.known.get(node.id)
            return None if value is None else self.text(value, steps)
        read = _READ.get(type(node))
        if read is None:
            return None
        key = id(node)
        if key in self._read:
            return self._read[key]
        if steps <= 0 or self._left <= 0:
            self.spent = True
            return None
        self._read[key] = None  # a = a + "b" leads back to itself
        found = read(self, node, steps)
        if found is not None:
            found = found[:MAX_TEXT]
            self._left -= len(found)
        self._read[key] = found
        return found

    def _value(self, node: ast.FormattedValue, steps: int) -> str | None:
        return self.text(node.value, steps - 1)

    def _interpolated(self, node: ast.JoinedStr, steps: int) -> str | None:
        return self._joined(node.values, "", steps)

    def _operated(self, node: ast.BinOp, steps: int) -> str | None:
        if isinstance(node.op, ast.Mod):
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return self._filled(self.text(node.left, steps - 1), _FIELD, values, steps)
        if isinstance(node.op, ast.Mult):
            return self._repeated(node, steps)
        if not isinstance(node.op, ast.Add):
            return None
        # Chains lean left: unrolled here, they cost no recursion.
        parts: list[ast.expr] = [node.right]
        left: ast.expr = node.left
        while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
            if id(left) in self._read:
                break
            parts.append(left.right)
            left = left.left
        return self._joined([left, *reversed(parts)], "", steps)

    def _repeated(self, node: ast.BinOp, steps: int) -> str | None:
        """``"_" * 2``: half of a name that no string of the program shows."""
        times = 1
        base: ast.expr = node
        # 1 * 2 * ... * 200 is no recursion either.
        while isinstance(base, ast.BinOp) and isinstance(base.op, ast.Mult):
            count, other = self._integer(base.right), base.left
            if count is None:
                count, other = self._integer(base.left), base.right
            if count is None:
                return None
            times, base = min(max(0, times * count), MAX_TEXT), other
        text = self.text(base, steps - 1)
        return text * min(times, MAX_TEXT // len(text) + 1) if text else text

    def _integer(self, node: ast.expr) -> int | None:
        """A literal integer, or a name that stands for one."""
        value = self.known.get(node.id) if isinstance(node, ast.Name) else node
        number = None if value is None else integer_of(value)
        return None if number is None else max(-1, min(number, MAX_TEXT))

    def _filled(
        self, pattern: str | None, fields: re.Pattern[str], values: list[ast.expr], steps: int
    ) -> str | None:
        """``"%s%s" % (a, b)`` and ``"{}{}".format(a, b)``, fields in order."""
        if pattern is None:
            return None
        pieces = fields.split(pattern)
        if len(pieces) != len(values) + 1:
            return None
        texts = [pieces[0]]
        size = 0
        for piece, value in zip(pieces[1:], values, strict=True):
            code = integer_of(value)
            number = code is not None and 0 <= code < 0x110000
            text = chr(code) if code and number else self.text(value, steps - 1)
            if text is None:
                return None
            texts += [text, piece]
            size += len(text)
            if size > MAX_TEXT:
                break
        return "".join(texts)

    def _joined(self, parts: list[ast.expr], between: str, steps: int) -> str | None:
        texts: list[str] = []
        size = 0
        for part in parts:
            text = self.text(part, steps - 1)
            if text is None:
                return None
            texts.append(text)
            size += len(text) + len(between)
            if size > MAX_TEXT:
                break
        return between.join(texts)

    def _sliced(self, node: ast.Subscript, steps: int) -> str | None:
        text = self.text(node.value, steps - 1)
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

    def _called(self, node: ast.Call, steps: int) -> str | None:
        function = node.func
        if isinstance(function, ast.Attribute):
            return self._method(function, node.args, steps)
        if not isinstance(function, ast.Name) or len(node.args) != 1:
            return None
        if function.id == "chr":
            value = integer_of(node.args[0])
            return chr(value) if value is not None and 0 <= value < 0x110000 else None
        if function.id in ("str", "reversed"):
            text = self.text(node.args[0], steps - 1)
            return text if text is None or function.id == "str" else text[::-1]
        if function.id in ("bytes", "bytearray"):
            numbers = integers_of(node.args[0])
            return None if numbers is None else "".join(map(chr, (n & 255 for n in numbers)))
        return None

    def _method(self, function: ast.Attribute, args: list[ast.expr], steps: int) -> str | None:
        name = function.attr
        if name not in METHODS:
            return None
        if name == "fromhex" and args:
            text = self.text(args[0], steps - 1)
            try:
                return bytes.fromhex(text or "").decode("latin-1") or None
            except ValueError:
                return None
        text = self.text(function.value, steps - 1)
        if text is None:
            return None
        if name in ("decode", "encode", "strip", "lower", "upper", "swapcase", "casefold"):
            changed = {"lower": text.lower, "upper": text.upper, "swapcase": text.swapcase}
            return changed[name]() if name in changed else text
        if name == "format":
            return self._filled(text, _BRACES, args, steps)
        if name == "join" and len(args) == 1:
            return self._joined_by(text, args[0], steps)
        if name == "translate" and len(args) == 1:
            return swapped(text, args[0])
        if name == "replace" and len(args) == 2:
            old, new = self.text(args[0], steps - 1), self.text(args[1], steps - 1)
            return None if new is None or not old else _replaced(text, old, new)
        return None

    def _joined_by(self, between: str, parts: ast.expr, steps: int) -> str | None:
        """``"".join(...)`` of a list, of shifted letters, of a split string or of a string."""
        if isinstance(parts, ast.List | ast.Tuple):
            return self._joined(parts.elts, between, steps)
        function = parts.func if isinstance(parts, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr == "split":
            assert isinstance(parts, ast.Call)
            whole = self.text(function.value, steps - 1)
            mark = self.text(parts.args[0], steps - 1) if parts.args else None
            if whole is None or (parts.args and not mark):
                return None
            return between.join(whole.split(mark, _enough(between)))
        inner = shifted(parts, self.text) or self.text(parts, steps - 1)
        return None if inner is None else between.join(inner[: _enough(between)])


_READ: Final[dict[type[ast.expr], Callable[..., str | None]]] = {
    ast.BinOp: Folder._operated,
    ast.Subscript: Folder._sliced,
    ast.Call: Folder._called,
    ast.JoinedStr: Folder._interpolated,
    ast.FormattedValue: Folder._value,
}


def _enough(between: str) -> int:
    """How many pieces with this text between them are longer than any text that is read."""
    return MAX_TEXT // max(1, len(between)) + 1


def _replaced(text: str, old: str, new: str) -> str:
    """``text.replace(old, new)`` as far as it is read."""
    return text.replace(old, new, _enough(new) if new else -1)


def integer_of(node: ast.expr) -> int | None:
    """A literal integer, also a negative one."""
    negative = False
    # A loop: thousands of signs pass the parser, and would be too deep for a recursion.
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, negative = node.operand, not negative
    value = node.value if isinstance(node, ast.Constant) else None
    if type(value) is not int:
        return None
    return -value if negative else value


def integers_of(node: ast.expr) -> list[int] | None:
    """A literal list or tuple of integers."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    values: list[int] = []
    for element in node.elts[:MAX_TEXT]:
        value = integer_of(element)
        if value is None:
            return None
        values.append(value)
    return values


def truth_of(test: ast.expr, levels: int = 20) -> bool | None:
    """The truth of a test made of literals alone; None where it depends on anything."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if levels <= 0:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth_of(test.operand, levels - 1)
        return None if inner is None else not inner
    if isinstance(test, ast.List | ast.Tuple | ast.Set):
        return None if test.elts else False
    if isinstance(test, ast.Dict):
        return None if test.values else False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0])
    return None


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool | None:
    if not isinstance(left, ast.Constant) or not isinstance(right, ast.Constant):
        return None
    a, b = left.value, right.value
    if isinstance(operator, ast.Eq | ast.NotEq):
        return (a == b) == isinstance(operator, ast.Eq)
    if isinstance(a, int | float) and isinstance(b, int | float):
        if isinstance(operator, ast.Lt | ast.LtE):
            return a < b or (a == b and isinstance(operator, ast.LtE))
        if isinstance(operator, ast.Gt | ast.GtE):
            return a > b or (a == b and isinstance(operator, ast.GtE))
    return None
