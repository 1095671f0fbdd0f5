"""Decoration: code that cannot reach the answer, and helpers that only re-implement an operator.

An import list stops ``from calc import addition``; the adaptive form writes ``def addition(a, b):
return a + b`` into the program. One such helper is a style that honest programs have too, so it is
reported; two for different operators are a library, which rejects. A helper with a name from the
question (``def total_cost(price, quantity)``) says something the operator does not, and is none.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import Final

from grpo_guard.content.code.note import Note, words
from grpo_guard.content.code.program import Program, Scope
from grpo_guard.content.code.source import Source

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
    r"\b(?:def|class|function|method|calculator|program|code|python)s?\b", re.I
)
_SPLIT: Final = re.compile(r"[\W_\d]+")
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DUNDERS: Final = {
    "__add__": "+", "__radd__": "+", "__sub__": "-", "__rsub__": "-", "__mul__": "*",
    "__rmul__": "*", "__truediv__": "/", "__floordiv__": "/", "__mod__": "%", "__pow__": "**",
}  # fmt: skip
_OPERATOR_MODULE: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "/", "mod": "%", "pow": "**",
    "concat": "+", "iadd": "+", "isub": "-", "imul": "*",
}  # fmt: skip
_NUMPY: Final = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "true_divide": "/",
    "floor_divide": "/", "mod": "%", "power": "**",
}  # fmt: skip
_FUNCTIONS: Final = {"operator": _OPERATOR_MODULE, "numpy": _NUMPY}


def check_decoration(program: Program, source: Source, shift: int) -> list[Note]:
    """Code that cannot reach the answer. Nothing to say of a module without a main program."""
    if not program.runs:
        return []
    notes = []
    for scope in program.scopes:
        top = scope.kind == "function" and scope.parent is program.module
        if top and program.is_dead(scope):
            start, end = source.span(scope.node, shift)
            message = f"defines {scope.name[:60]}, which is never called"
            notes.append(Note("never_called", message, start, end, scope.name))
    for first, last in _dead(program):
        start, end = source.span(first, shift)[0], source.span(last, shift)[1]
        notes.append(Note("unreachable_code", "holds code that can never run", start, end))
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
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        compared = _compared(test.left, test.ops[0], test.comparators[0])
        return None if compared is None else compared is not turned
    return None


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool | None:
    if not isinstance(left, ast.Constant) or not isinstance(right, ast.Constant):
        return None
    a, b = left.value, right.value
    if isinstance(operator, ast.Eq | ast.NotEq):
        return (a == b) == isinstance(operator, ast.Eq)
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return None
    if isinstance(operator, ast.Lt | ast.LtE):
        return a < b or (a == b and isinstance(operator, ast.LtE))
    if isinstance(operator, ast.Gt | ast.GtE):
        return a > b or (a == b and isinstance(operator, ast.GtE))
    return None


def check_helpers(program: Program, source: Source, asked: str, shift: int) -> list[Note]:
    """Notes about operators in disguise, `operator_helper` or, for several, `operator_library`.

    A question that asks for a calculator, or for a function by its name, has it: ``asked``.
    """
    found: list[tuple[str, ast.AST, str]] = []
    used: frozenset[str] = frozenset()
    for scope in program.scopes:
        node = scope.node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if not used:
            used = program.read_names | program.read_attributes
        name = scope.name or program.lambdas.get(id(node), "")
        operator = _reimplements(node, name, scope)
        if operator and (not scope.name or scope.name in used):
            found.append((operator, node, name or "a lambda"))
    found += _explicit(program)
    found = [one for one in found if not _is_asked_for(one[2], asked)]
    if not found:
        return []
    operators = {operator for operator, _, _ in found}
    library = len(operators) > 1
    notes = []
    for operator, node, name in found:
        start, end = source.span(node, shift)
        message = f"{name[:60]} only does what the operator {operator} does"
        if library:
            message += f", one of {len(operators)} such helpers: a library written into the program"
        kind = "operator_library" if library else "operator_helper"
        notes.append(Note(kind, message, start, end))
    return notes


def _is_asked_for(name: str, asked: str) -> bool:
    """Whether a question of programming names the helper: "a class with add and subtract"."""
    if not _PROGRAMMING.search(asked):
        return False
    return re.search(rf"\b{re.escape(name[:60])}(?![\w-])", asked, re.I) is not None


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
    operator = _returned(node, arguments)
    if operator is None:
        return named if only_named and neutral and isinstance(node, ast.FunctionDef) else None
    # reduce(lambda a, b: a * b, xs) and {"+": lambda a, b: a + b} need their lambdas.
    if isinstance(node, ast.Lambda) and not name.isidentifier():
        return None
    said_nothing = all(word in _FILLER or word in _BY_WORD or len(word) < 3 for word in words)
    return operator if only_named or (neutral and said_nothing) else None


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


def _explicit(program: Program) -> list[tuple[str, ast.AST, str]]:
    """``operator.add(2, 3)``, ``(2).__add__(3)``, ``numpy.add(2, 3)``: two operands in their hands.

    numpy's functions are at home on arrays; on plain numbers they are operators by another name.
    """
    found: list[tuple[str, ast.AST, str]] = []
    arithmetic = {a for a, module in program.aliases.items() if module in ("operator", "numpy")}
    members = {n: m for n, m in program.members.items() if m[0] in ("operator", "numpy")}
    for call, _ in program.calls if arithmetic or members else ():
        named = _named(call.func, program, members)
        if named is None and call.args and getattr(call.func, "id", "") == "partial":
            named = _named(call.args[0], program, members)  # partial(operator.add, 3)
        if named is None or len(call.args) != 2:
            continue
        module, member = named
        if member in _FUNCTIONS[module] and (module == "operator" or _plain(call)):
            found.append((_FUNCTIONS[module][member], call, f"{module}.{member}"))
    if program.read_attributes.isdisjoint(_DUNDERS):
        return found
    called = {id(call.func) for call, _ in program.calls}
    for node, scope in program.attributes:
        if node.attr in _DUNDERS and not _in_special(scope):
            of_type = isinstance(node.value, ast.Name) and node.value.id in ("int", "float")
            if of_type or id(node) in called:
                found.append((_DUNDERS[node.attr], node, node.attr))
    return found


def _named(
    function: ast.expr, program: Program, members: dict[str, tuple[str, str]]
) -> tuple[str, str] | None:
    """The module and member that a function is named by."""
    if isinstance(function, ast.Name):
        return members.get(function.id)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        module = program.aliases.get(function.value.id, "")
        return (module, function.attr) if module in _FUNCTIONS else None
    return None


def _plain(call: ast.Call) -> bool:
    """Whether an argument is a number as it stands."""
    return any(
        isinstance(argument, ast.Constant) and isinstance(argument.value, int | float)
        for argument in call.args
    )


def _in_special(scope: Scope) -> bool:
    """Inside a class or a special method, special methods pass on to each other by name."""
    at: Scope | None = scope
    while at is not None:
        if at.kind == "class" or at.name in _DUNDERS:
            return True
        at = at.parent
    return False
