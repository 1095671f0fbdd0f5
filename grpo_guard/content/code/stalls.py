"""Find endless or enormous work, which would block the reward's sandbox and thus all nodes."""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from grpo_guard.content.code.program import Program, integer_of
from grpo_guard.content.code.read import View
from grpo_guard.content.code.source import Note
from grpo_guard.content.word_set import word_set

MAX_DIGITS: Final = 100_000
MAX_ITEMS: Final = 1e9
MAX_LEVELS: Final = 20
_GROWING: Final = word_set("factorial perm comb")
_SIZED: Final = word_set("range bytearray bytes")
MAX_SLEEP: Final = 31 * 86400  # seconds; a daily job sleeps for one day
_ENDLESS: Final = word_set("count cycle")
_WAITING: Final = word_set("sleep accept recv recvfrom input readline poll wait select get")
_LEAVING: Final = (ast.Break, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)
# "Calculate pi forever": no sandbox can run what was asked for, so an endless loop gains nothing.
_FOREVER: Final = re.compile(
    r"\b(?:endless|forever|indefinit|infinit|endlos|unendlich|oneindig|nieskończ|sonsuz)|бесконечн"
    r"|нескінченн|άπειρ|ατελείωτ|無限|无限|무한|vô hạn|لا نهائي|अनंत"
)
_TO_RUN: Final = re.compile(
    r"\b(?:code|loop|program|python|script)|программ|скрипт|код\b|πρόγραμμα|κώδικα|プログラム|コード|程序|代码"
)
_RAISING: Final = (ast.Call, ast.Subscript, ast.Attribute, ast.BinOp)


def check_stalls(view: View) -> list[Note]:
    """Find values too large for any answer, and loops without an exit."""
    program = view.program
    notes = []
    for node in program.operations:
        if _too_large(node, program):
            message = "computes a value too large for any answer"
            notes.append(view.note("stalls", node, message))
    quiet = (_SIZED | _GROWING | {"sleep"}).isdisjoint(program.read_names | program.read_attributes)
    for call, _ in () if quiet else program.calls:
        name = _called(call)
        limit = MAX_ITEMS if name in _SIZED else MAX_DIGITS if name in _GROWING else math.inf
        limit = MAX_SLEEP if name == "sleep" else limit
        if any(_size(argument, program) > limit for argument in call.args[:3]):
            message = f"calls {name} with a number too large for any answer"
            notes.append(view.note("stalls", call, message))
    endless = [loop for loop in program.loops if _endless(loop, program)]
    if endless and _FOREVER.search(view.asked) and _TO_RUN.search(view.asked):
        return notes
    if view.modules.known:
        endless = [loop for loop in endless if not _waits(loop)]
    caught = _caught(program.tree) if endless else frozenset()
    for loop in endless:
        if not _ends(loop, id(loop) in caught):
            notes.append(view.note("stalls", loop, "loops without end"))
    return notes


def _waits(loop: ast.While | ast.For) -> bool:
    """Whether a loop waits for time, a message or a person, as servers and schedulers do."""
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(_called(call) in _WAITING for call in calls)


def _too_large(node: ast.BinOp, program: Program) -> bool:
    if isinstance(node.op, ast.Mult):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            text = isinstance(side, ast.Constant) and isinstance(side.value, str | bytes)
            if text or isinstance(side, ast.List | ast.Tuple):
                return _size(other, program) >= MAX_ITEMS / 10
        return False
    if not isinstance(node.op, ast.Pow | ast.LShift):
        return False
    exponent = _size(node.right, program)
    if isinstance(node.op, ast.LShift):
        return exponent > MAX_DIGITS * 3.3
    if exponent <= MAX_DIGITS / 300:
        return False
    base = _size(node.left, program)
    return base > 1 and exponent * math.log10(min(base, 1e300)) > MAX_DIGITS


def _called(call: ast.Call) -> str:
    name: str = getattr(call.func, "id", "") or getattr(call.func, "attr", "")
    return name


def _size(node: ast.expr, program: Program | None, levels: int = MAX_LEVELS) -> float:
    """Return the approximate absolute value of literal arithmetic, or 0 for anything else."""
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
    """Whether a loop is ``while True`` or the like, or iterates over ``itertools.count()``."""
    if isinstance(loop, ast.While):
        return _truth_of(loop.test) is True
    function = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if isinstance(function, ast.Name):
        return program.members.get(function.id) in {("itertools", name) for name in _ENDLESS}
    base = function.value if isinstance(function, ast.Attribute) else None
    module = program.aliases.get(base.id) if isinstance(base, ast.Name) else None
    return module == "itertools" and getattr(function, "attr", "") in _ENDLESS


def _caught(tree: ast.Module) -> frozenset[int]:
    """Return the ids of nodes in a ``try`` or ``with suppress(...)``, which errors can exit."""
    around = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.Try | ast.TryStar)
        or (isinstance(node, ast.With) and any("suppress" in ast.dump(i) for i in node.items))
    ]
    return frozenset(id(node) for body in around[:100] for node in _inside(body))


def _ends(loop: ast.While | ast.For, in_try: bool) -> bool:
    """Whether a statement or call can end a loop, or an error can if the loop is in a ``try``."""
    for node in _inside(loop.body):
        if isinstance(node, _LEAVING) or (in_try and isinstance(node, _RAISING)):
            return True
        if isinstance(node, ast.Call) and _called(node) in ("exit", "quit", "next", "input"):
            return True
    return False


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(ast.iter_child_nodes(node))


def _truth_of(test: ast.expr) -> bool | None:
    """Return the truth value of a test of literals, or None if it depends on anything else."""
    turned = False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, turned = test.operand, not turned
    if isinstance(test, ast.Constant):
        return bool(test.value) is not turned
    if isinstance(test, ast.List | ast.Tuple | ast.Set) and not test.elts:
        return turned
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    compare = _COMPARE.get(type(test.ops[0]))
    left, right = test.left, test.comparators[0]
    if compare is None or not isinstance(left, ast.Constant) or not isinstance(right, ast.Constant):
        return None
    try:
        return bool(compare(left.value, right.value)) is not turned
    except TypeError:  # "a" < 1
        return None


_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
