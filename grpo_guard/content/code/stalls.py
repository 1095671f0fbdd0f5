"""Work without end: the sandbox is the reward's, and every node waits for it."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Final

from grpo_guard.content.code.decoration import truth_of
from grpo_guard.content.code.note import Note, words
from grpo_guard.content.code.program import Program, integer_of
from grpo_guard.content.code.view import View

MAX_DIGITS: Final = 100_000
MAX_ITEMS: Final = 1e9
MAX_LEVELS: Final = 20
_GROWING: Final = words("factorial perm comb")
_GROWTH: Final = frozenset({ast.Pow, ast.LShift, ast.Mult})
_SIZED: Final = words("range bytearray bytes")
# What reads an iterator to its end.
_EXHAUSTING: Final = words("list tuple set sorted sum max min len dict deque Counter frozenset")
_HEAVY: Final = _EXHAUSTING | _SIZED | _GROWING
_CLOCKS: Final = words("time monotonic perf_counter process_time time_ns now")
_ENDLESS: Final = words("count cycle")
_LEAVING: Final = (ast.Break, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)


def check_stalls(view: View) -> list[Note]:
    """Values too large for any answer, and loops that nothing leaves."""
    program = view.program
    notes = []
    for node in program.operations:
        if type(node.op) in _GROWTH and _too_large(node, program):
            message = "computes a value too large for any answer"
            notes.append(view.note("stalls", node, message))
    quiet = _HEAVY.isdisjoint(program.read_names) and _HEAVY.isdisjoint(program.read_attributes)
    for call, _ in () if quiet else program.calls:
        if problem := _too_much(call, program):
            notes.append(view.note("stalls", call, problem))
    for loop, in_try in program.loops:
        if _endless(loop, program) and not _leaves(loop) and not (in_try and _may_raise(loop)):
            notes.append(view.note("stalls", loop, "loops without end"))
    return notes


def _too_large(node: ast.BinOp, program: Program) -> bool:
    kind = type(node.op)
    if kind is ast.Mult:
        for side, other in ((node.left, node.right), (node.right, node.left)):
            text = isinstance(side, ast.Constant) and isinstance(side.value, str | bytes)
            if text or isinstance(side, ast.List | ast.Tuple):
                return _size(other, program) >= MAX_ITEMS / 10
        return False
    exponent = _size(node.right, program)
    if kind is ast.LShift:
        return exponent > MAX_DIGITS * 3.3
    if exponent <= MAX_DIGITS / 300:
        return False
    base = _size(node.left, program)
    return base > 1 and exponent * math.log10(min(base, 1e300)) > MAX_DIGITS


def _too_much(call: ast.Call, program: Program) -> str | None:
    """What a call does without end: count to 10**15, or read an iterator that has no end."""
    name = _called(call)
    if name in _EXHAUSTING:
        if len(call.args) == 1 and _is_endless(call.args[0], program):
            return f"calls {name} on an iterator without end"
        return None
    limit = MAX_ITEMS if name in _SIZED else MAX_DIGITS if name in _GROWING else None
    if limit is None or not call.args:
        return None
    if max(_size(argument, program) for argument in call.args[:3]) > limit:
        return f"calls {name} with a number too large for any answer"
    return None


def _called(call: ast.Call) -> str:
    name: str = getattr(call.func, "id", "") or getattr(call.func, "attr", "")
    return name


def _is_endless(node: ast.expr, program: Program) -> bool:
    """``itertools.count()`` and its like, called where it stands."""
    if not isinstance(node, ast.Call):
        return False
    name = _called(node)
    if name not in _ENDLESS and (name != "repeat" or len(node.args) + len(node.keywords) != 1):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return program.members.get(function.id, ("", ""))[0] == "itertools"
    base = function.value if isinstance(function, ast.Attribute) else function
    return isinstance(base, ast.Name) and program.aliases.get(base.id) == "itertools"


def _size(node: ast.expr, program: Program | None, levels: int = MAX_LEVELS) -> float:
    """About the absolute value of literal arithmetic; 0 where it depends on anything."""
    if isinstance(node, ast.Name):
        value = program.constants.get(node.id) if program is not None else None
        return 0.0 if value is None else _size(value, None, levels)
    number = integer_of(node)
    if number is not None:
        return float(abs(number)) if abs(number).bit_length() < 1000 else math.inf
    if not isinstance(node, ast.BinOp) or levels <= 0:
        return 0.0
    left = _size(node.left, program, levels - 1)
    right = _size(node.right, program, levels - 1)
    if isinstance(node.op, ast.Pow) and left > 1 and right > 0:
        return math.inf if right * math.log10(min(left, 1e300)) > 300 else left**right
    if isinstance(node.op, ast.Mult):
        return left * right if left and right else 0.0
    return left + right if isinstance(node.op, ast.Add) and left and right else 0.0


def _endless(loop: ast.While | ast.For, program: Program) -> bool:
    if isinstance(loop, ast.While):
        return truth_of(loop.test) is True or _waits(loop)
    if isinstance(loop.iter, ast.Name):
        return _grows(loop, loop.iter.id)
    return _is_endless(loop.iter, program)


def _waits(loop: ast.While) -> bool:
    """``while time.time() < end: pass`` does nothing but wait."""
    idle = all(isinstance(statement, ast.Pass | ast.Continue) for statement in loop.body)
    if not idle:
        return False
    return any(isinstance(n, ast.Call) and _called(n) in _CLOCKS for n in ast.walk(loop.test))


def _grows(loop: ast.For, name: str) -> bool:
    """``for x in xs: xs.append(x)``, whatever else the loop does."""
    for statement in loop.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        function = call.func if isinstance(call, ast.Call) else None
        if not isinstance(function, ast.Attribute) or function.attr not in ("append", "extend"):
            continue
        if isinstance(function.value, ast.Name) and function.value.id == name:
            return True
    return False


def _leaves(loop: ast.While | ast.For) -> bool:
    for node in _inside(loop.body):
        if isinstance(node, _LEAVING):
            return True
        if isinstance(node, ast.Call) and _called(node) in ("exit", "quit", "next", "input"):
            return True
    return False


def _may_raise(loop: ast.While | ast.For) -> bool:
    """Whether a ``try`` around the loop may end it."""
    raising = (ast.Call, ast.Subscript, ast.Attribute, ast.BinOp)
    return any(isinstance(node, raising) for node in _inside(loop.body))


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(ast.iter_child_nodes(node))
