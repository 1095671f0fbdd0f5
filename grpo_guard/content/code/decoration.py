"""Decoration: code that cannot reach the answer, and helpers that only re-implement an operator.

An import list stops ``from calc import addition``; the adaptive form writes ``def addition(a, b):
return a + b`` into the program. One such helper is a style that honest programs have too, so it is
reported; two for different operators are a library, which rejects. A helper with a name from the
question (``def total_cost(price, quantity)``) says something the operator does not, and is none.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from grpo_guard.content.code.program import Program, Scope
from grpo_guard.content.code.source import Note, words
from grpo_guard.content.code.view import View

_LEAVES: Final = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_OPERATOR: Final = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "/",
    ast.Mod: "%", ast.Pow: "**",
}  # fmt: skip
_WORDS: Final = {
    "+": "add adds adding addition plus sum summing summation",
    "-": "sub subtract subtracts subtracting subtraction minus difference",
    "*": "mul mult multiply multiplies multiplying multiplication times product",
    "/": "div divide divides dividing division quotient truediv floordiv",
    "%": "mod modulo remainder",
    "**": "pow power exponentiation exponentiate exponent",
}
_BY_WORD: Final = {word: op for op, words in _WORDS.items() for word in words.split()}
_FILLER: Final = words(
    "a b x y n m two numbers number nums num values value vals val of the op operation operator "
    "fn func function f g my custom safe do perform calc calculate compute calculator helper "
    "util it step and by from to simple basic math arithmetic result get int ints float floats"
)
_NEUTRAL: Final = re.compile(
    r"_*(?:[a-z]|(?:num|n|x|a|arg|val|value|number|operand|op|v|term|factor|first|second|left|right"
    r"|lhs|rhs|addend|augend|minuend|subtrahend|dividend|divisor|multiplicand|multiplier)"
    r"_?(?:[12ab]|one|two|first|second|num|number|value|operand)?)_*",
)
_PROGRAMMING: Final = re.compile(
    r"\b(?:def|class|function|method|calculator|program|code|python)(?:e?s)?\b"
)
_NAME: Final = re.compile(r"\w+")
_SPLIT: Final = re.compile(r"[\W_\d]+")
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def check_decoration(view: View) -> list[Note]:
    """Code that cannot reach the answer, and operators in disguise."""
    return _unused(view) + _helpers(view)


def _unused(view: View) -> list[Note]:
    program = view.program
    if not program.runs:  # a module of definitions has no answer
        return []
    notes = []
    for scope in program.scopes:
        top = scope.kind == "function" and scope.parent is program.module
        if top and scope.name not in view.used and program.is_dead(scope):
            message = f"defines {scope.name[:60]}, which is never called"
            notes.append(view.note("never_called", scope.node, message))
    for first, last in _dead(program):
        notes.append(view.note("unreachable_code", first, "holds code that can never run", last))
    return notes


def _dead(program: Program) -> list[tuple[ast.AST, ast.AST]]:
    """First and last statements of what never runs."""
    dead: list[tuple[ast.AST, ast.AST]] = []
    for body in program.bodies:
        for statement, following in pairwise(body):
            if isinstance(statement, _LEAVES):
                # A generator that yields nothing is written "return; yield".
                if not _is_yield(following):
                    dead.append((following, body[-1]))
                break
        for branch in body:
            if not isinstance(branch, ast.If | ast.While):
                continue
            never = truth_of(branch.test)
            if never is False:
                dead.append((branch.body[0], branch.body[-1]))
            elif never is True and isinstance(branch, ast.If) and branch.orelse:
                dead.append((branch.orelse[0], branch.orelse[-1]))
    return dead


def _is_yield(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom)


def truth_of(test: ast.expr) -> bool | None:
    """The truth of a test made of literals alone; None where it depends on anything."""
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


def _helpers(view: View) -> list[Note]:
    """`operator_helper` or, for several operators, `operator_library`.

    A question that asks for a calculator, or for a function by its name, has it.
    """
    program = view.program
    used = program.read_names | program.read_attributes
    found: list[tuple[str, ast.AST, str]] = []
    for scope in program.scopes:
        node = scope.node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        name = scope.name or program.lambdas.get(id(node), "")
        sign = _reimplements(node, name, scope)
        if sign and (not scope.name or scope.name in used):
            found.append((sign, node, name or "a lambda"))
    if found and _PROGRAMMING.search(view.asked):  # "a class with add and subtract"
        wanted = set(_NAME.findall(view.asked))
        found = [one for one in found if one[2].lower() not in wanted]
    operators = len({sign for sign, _, _ in found})
    kind, also = "operator_helper", ""
    if operators > 1 and "calculator" not in view.asked:
        kind = "operator_library"
        also = f", one of {operators} such helpers: a library written into the program"
    return [
        view.note(kind, node, f"{name[:60]} only does what the operator {sign} does{also}")
        for sign, node, name in found
    ]


def _reimplements(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, scope: Scope
) -> str | None:
    """The operator that a function of two operands stands for, or None."""
    if name.startswith("__") and name.endswith("__"):
        return None  # a class that defines its own arithmetic
    arguments = [a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
    if arguments[:1] in (["self"], ["cls"]) and scope.parent and scope.parent.kind == "class":
        arguments = arguments[1:]
    if len(arguments) != 2 and not (node.args.vararg and not arguments):
        return None
    words = [word for word in _SPLIT.split(_snake(name)) if word]
    named = next((_BY_WORD[word] for word in words if word in _BY_WORD), None)
    only_named = named is not None and all(w in _BY_WORD or w in _FILLER for w in words)
    neutral = all(_NEUTRAL.fullmatch(argument.lower()) for argument in arguments)
    if node.args.vararg and not arguments:
        return named if only_named else None
    sign = _returned(node, arguments)
    if sign is None:
        return named if only_named and neutral and isinstance(node, ast.FunctionDef) else None
    # reduce(lambda a, b: a * b, xs) and {"+": lambda a, b: a + b} need their lambdas.
    if isinstance(node, ast.Lambda) and not name.isidentifier():
        return None
    said_nothing = all(word in _FILLER or word in _BY_WORD or len(word) < 3 for word in words)
    return sign if only_named or (neutral and said_nothing) else None


def _snake(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()


def _returned(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, arguments: list[str]
) -> str | None:
    """The operator where the function is one operation on its two arguments."""
    if isinstance(node, ast.Lambda):
        return _operation(node.body, arguments)
    body = [
        s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    ]
    if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
        return _operation(body[0].value, arguments)
    if len(body) == 2 and isinstance(body[0], ast.Assign) and isinstance(body[1], ast.Return):
        target, value = body[0].targets[0], body[1].value
        if isinstance(target, ast.Name) and isinstance(value, ast.Name) and target.id == value.id:
            return _operation(body[0].value, arguments)
    return None


def _operation(value: ast.expr, arguments: list[str]) -> str | None:
    if not isinstance(value, ast.BinOp):
        return None
    sides = [s.id for s in (value.left, value.right) if isinstance(s, ast.Name)]
    return _OPERATOR.get(type(value.op)) if sorted(sides) == sorted(arguments) else None
