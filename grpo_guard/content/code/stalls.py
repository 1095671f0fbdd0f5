"""Work without end: the sandbox is the reward's, and every node waits for it."""

from __future__ import annotations

import ast
import math
from typing import Final

from grpo_guard.content.code.fold import integer_of
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source

MAX_DIGITS: Final = 100_000
MAX_ITEMS: Final = 1e9
MAX_LEVELS: Final = 20
_GROWING: Final = frozenset({"factorial", "perm", "comb"})


def check_stalls(program: Program, source: Source, shift: int) -> list[Note]:
    """Values too large for any answer, and loops that nothing leaves."""
    notes = []
    for node in program.operations:
        if _too_large(node):
            message = "computes a value too large for any answer"
            notes.append(Note("stalls", message, *source.span(node, shift)))
    for call, _ in program.calls:
        function = call.func
        name = getattr(function, "id", getattr(function, "attr", ""))
        size = max((_size(a) for a in call.args), default=0.0)
        if (name == "range" and size > MAX_ITEMS) or (name in _GROWING and size > MAX_DIGITS):
            message = f"calls {name} with a number too large for any answer"
            notes.append(Note("stalls", message, *source.span(call, shift)))
    for loop, in_try in program.loops:
        if not in_try and _truthy(loop.test) and not _leaves(loop):
            notes.append(Note("stalls", "loops without end", *source.span(loop, shift)))
    return notes


def _too_large(node: ast.BinOp) -> bool:
    if isinstance(node.op, ast.Pow):
        base, exponent = _size(node.left), _size(node.right)
        return base > 1 and exponent * math.log10(min(base, 1e300)) > MAX_DIGITS
    if isinstance(node.op, ast.LShift):
        return _size(node.right) > MAX_DIGITS * 3.3
    if isinstance(node.op, ast.Mult):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            text = isinstance(side, ast.Constant) and isinstance(side.value, str | bytes)
            if (text or isinstance(side, ast.List | ast.Tuple)) and _size(other) >= MAX_ITEMS / 10:
                return True
    return False


def _size(node: ast.expr, levels: int = MAX_LEVELS) -> float:
    """About the absolute value of literal arithmetic; 0 where it depends on anything."""
    value = integer_of(node)
    if value is not None:
        return float(abs(value)) if abs(value).bit_length() < 1000 else math.inf
    if not isinstance(node, ast.BinOp) or levels <= 0:
        return 0.0
    left, right = _size(node.left, levels - 1), _size(node.right, levels - 1)
    if isinstance(node.op, ast.Pow) and left > 1 and right > 0:
        return math.inf if right * math.log10(min(left, 1e300)) > 300 else left**right
    if isinstance(node.op, ast.Mult):
        return left * right if left and right else 0.0
    return left + right if isinstance(node.op, ast.Add) and left and right else 0.0


def _truthy(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def _leaves(loop: ast.While) -> bool:
    stack: list[ast.AST] = list(loop.body)
    leaving = (ast.Break, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)
    while stack:
        node = stack.pop()
        if isinstance(node, leaving):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("exit", "quit", "next"):
                return True
        stack.extend(ast.iter_child_nodes(node))
    return False
