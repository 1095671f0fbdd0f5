"""Helpers that only re-implement an operator: the paper's CODE attack with its library inlined.

An import list stops ``from calc import addition``; the adaptive form writes ``def addition(a, b):
return a + b`` into the program. One such helper is a style that honest programs have too, so it is
reported; two for different operators are a library, which rejects. A helper with a name from the
question (``def total_cost(price, quantity)``) says something the operator does not, and is none.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note, Weight
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.scope import Scope
from grpo_guard.content.code.source import Source

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
_DUNDERS: Final = {
    "__add__": "+", "__radd__": "+", "__sub__": "-", "__rsub__": "-", "__mul__": "*",
    "__rmul__": "*", "__truediv__": "/", "__floordiv__": "/", "__mod__": "%", "__pow__": "**",
}  # fmt: skip
_OPERATOR_MODULE: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "/", "mod": "%", "pow": "**",
    "concat": "+", "iadd": "+", "isub": "-", "imul": "*",
}  # fmt: skip


def check_helpers(program: Program, source: Source, shift: int) -> list[Note]:
    """Notes about operators in disguise, `operator_helper` or, for several, `operator_library`."""
    found: list[tuple[str, ast.AST, str]] = []
    used = {node.id for node, _ in program.loads} | {a.attr for a, _ in program.attributes}
    lambdas = any(isinstance(scope.node, ast.Lambda) for scope in program.scopes)
    names = _lambda_names(program.tree) if lambdas else {}
    for scope in program.scopes:
        node = scope.node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        name = scope.name or names.get(id(node), "")
        operator = _reimplements(node, name, scope)
        if operator and (not scope.name or scope.name in used):
            found.append((operator, node, name or "a lambda"))
    found += _explicit(program)
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
        weight = Weight.REJECTS if library else Weight.DECORATION
        notes.append(Note(kind, message, start, end, weight))
    return notes


def _lambda_names(tree: ast.Module) -> dict[int, str]:
    """``add = lambda a, b: a + b``, also as a dict's value."""
    names: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names[id(node.value)] = target.id if isinstance(target, ast.Name) else ""
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(value, ast.Lambda) and isinstance(key, ast.Constant):
                    names[id(value)] = str(key.value)
    return names


def _reimplements(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, scope: Scope
) -> str | None:
    """The operator that a function of two operands stands for, or None."""
    if name.startswith("__") and name.endswith("__"):
        return None  # a class that defines its own arithmetic
    arguments = [a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
    if arguments[:1] in (["self"], ["cls"]) and scope.parent and scope.parent.kind == "class":
        arguments = arguments[1:]
    words = [word for word in re.split(r"[\W_\d]+", _snake(name)) if word]
    named = next((_BY_WORD[word] for word in words if word in _BY_WORD), None)
    only_named = named is not None and all(w in _BY_WORD or w in _FILLER for w in words)
    neutral = all(_NEUTRAL.fullmatch(argument.lower()) for argument in arguments)
    if node.args.vararg and not arguments:
        return named if only_named else None
    if len(arguments) != 2:
        return None
    operator = _returned(node, arguments)
    if operator is None:
        return named if only_named and neutral and isinstance(node, ast.FunctionDef) else None
    # reduce(lambda a, b: a * b, xs) and {"+": lambda a, b: a + b} need their lambdas.
    if isinstance(node, ast.Lambda) and not name.isidentifier():
        return None
    said_nothing = all(word in _FILLER or word in _BY_WORD or len(word) < 3 for word in words)
    return operator if only_named or (neutral and said_nothing) else None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


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
    """``operator.add(2, 3)`` and ``(2).__add__(3)`` called with two operands in their hands."""
    found: list[tuple[str, ast.AST, str]] = []
    for call, scope in program.calls:
        function = call.func
        if isinstance(function, ast.Name):
            module, member = program.members.get(function.id, ("", ""))
            if module == "operator" and member in _OPERATOR_MODULE and len(call.args) == 2:
                found.append((_OPERATOR_MODULE[member], call, f"operator.{member}"))
        elif isinstance(function, ast.Attribute):
            base = function.value
            alias = program.aliases.get(base.id, "") if isinstance(base, ast.Name) else ""
            if alias == "operator" and function.attr in _OPERATOR_MODULE and len(call.args) == 2:
                found.append((_OPERATOR_MODULE[function.attr], call, f"operator.{function.attr}"))
            elif function.attr in _DUNDERS and not _in_special(scope):
                found.append((_DUNDERS[function.attr], call, function.attr))
    return found


def _in_special(scope: Scope) -> bool:
    """Inside a class, special methods pass on to each other by name."""
    at: Scope | None = scope
    while at is not None:
        if at.kind == "class":
            return True
        at = at.parent
    return False
