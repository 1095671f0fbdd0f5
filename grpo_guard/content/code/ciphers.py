"""Texts that a program spells letter by letter: shifted, swapped or split literals.

A cipher is an honest subject, so the disguise alone is no finding: what it spells may be one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

MAX_LETTERS: Final = 2000
MAX_LETTER: Final = 100
_SHIFTS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda code, key: code + key,
    ast.Sub: lambda code, key: code - key,
    ast.BitXor: lambda code, key: code ^ key,
}


def shifted(node: ast.expr, text_of: Callable[[ast.expr], str | None]) -> str | None:
    """What ``chr(ord(c) - 1) for c in "fwbm"`` spells; None for any other expression.

    Args:
        node: The comprehension.
        text_of: Reads the string that an expression of literals spells.
    """
    if not isinstance(node, ast.GeneratorExp | ast.ListComp) or len(node.generators) != 1:
        return None
    generator = node.generators[0]
    key = _key(node.elt, generator.target)
    text = text_of(generator.iter) if key is not None and not generator.ifs else None
    if key is None or text is None or len(text) > MAX_LETTERS:
        return None
    operate, by = key
    codes = [operate(ord(letter), by) for letter in text]
    return "".join(map(chr, codes)) if all(0 <= code < 0x110000 for code in codes) else None


def _key(elt: ast.expr, target: ast.expr) -> tuple[Callable[[int, int], int], int] | None:
    """The operation and the number of ``chr(ord(c) + number)``."""
    inner = _argument(elt, "chr")
    if not isinstance(inner, ast.BinOp) or type(inner.op) not in _SHIFTS:
        return None
    letter = _argument(inner.left, "ord")
    number = inner.right.value if isinstance(inner.right, ast.Constant) else None
    same = isinstance(letter, ast.Name) and isinstance(target, ast.Name) and letter.id == target.id
    if not same or type(number) is not int or abs(number) > 0x110000:
        return None
    return _SHIFTS[type(inner.op)], number


def _argument(node: ast.expr, name: str) -> ast.expr | None:
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    called = isinstance(node.func, ast.Name) and node.func.id == name
    return node.args[0] if called else None


def swapped(text: str, table: ast.expr) -> str | None:
    """``"fwbm".translate({102: 101, ...})`` with a literal table of numbers or letters."""
    if not isinstance(table, ast.Dict) or len(table.keys) > MAX_LETTERS:
        return None
    pairs: dict[int, int | str | None] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(value, ast.Constant):
            return None
        code, other = key.value, value.value
        in_range = type(other) is int and 0 <= other < 0x110000
        if type(code) is not int or not (in_range or isinstance(other, str | None)):
            return None
        # Two thousand letters that each become a long text would be gigabytes.
        pairs[code] = other[:MAX_LETTER] if isinstance(other, str) else other  # type: ignore[assignment]
    return text[:MAX_LETTERS].translate(pairs)
