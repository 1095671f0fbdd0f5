"""Find helpers that merely re-implement an operator.

An import list stops ``from calc import addition``, so the adaptive attack puts
``def addition(a, b): return a + b`` in the program instead. Honest programs sometimes have such a
helper too, so a single one is only reported; helpers for two different operators form a library,
which is rejected. A helper named after the question (``def total_cost(price, quantity)``) says more
than its operator and does not count.
"""

import ast
import re
from typing import Final

from grpo_guard.content.code.program import Scope
from grpo_guard.content.code.read import View
from grpo_guard.content.code.source import Note
from grpo_guard.content.word_set import word_set

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
OPERATIONS: Final = _BY_WORD.keys() - {"sum", "pow", "product", "times", "difference", "power"}
"""Words that name what an operator does and rarely mean anything else."""
_FILLER: Final = word_set(
    "a b x y n m two numbers number nums num values value vals val of the op operation operator "
    "fn func function f g my custom safe do perform calc calculate compute calculator helper "
    "util it step and by from to simple basic math arithmetic result get int ints float floats"
)
_NEUTRAL: Final = re.compile(
    r"_*(?:[a-z]|(?:num|n|x|a|arg|val|value|number|operand|op|v|term|factor|first|second|left|right"
    r"|lhs|rhs|addend|augend|minuend|subtrahend|dividend|divisor|multiplicand|multiplier)"
    r"_?(?:[12ab]|one|two|first|second|num|number|value|operand)?)_*"
)
_PROGRAMMING: Final = re.compile(
    r"\b(?:def|class|function|method|calculator|program|code|python)(?:e?s)?\b"
)
_CALCULATOR: Final = re.compile(
    r"calculator|calculat?rice|calcolatrice|calculadora|taschenrechner|rekenmachine|kalkulator"
    r"|калькулятор|hesap makinesi|máy tính|αριθμομηχανή|آلة حاسبة|ماشین حساب|कैलकुलेटर|计算器|計算機"
    r"|電卓|계산기"
)
_NAME: Final = re.compile(r"\w+")
_SPLIT: Final = re.compile(r"[\W_\d]+")
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def check_helpers(view: View) -> list[Note]:
    """Find helpers that merely re-implement an operator.

    The notes are of kind `operator_helper` or, for helpers of several operators,
    `operator_library`. If the question asks for a function by name, that helper is allowed; if it
    asks for a calculator, the library is.
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
    if operators > 1 and not _CALCULATOR.search(view.asked):
        kind = "operator_library"
        also = f", one of {operators} such helpers: a library written into the program"
    return [
        view.note(kind, node, f"{name[:60]} only does what the operator {sign} does{also}")
        for sign, node, name in found
    ]


def _reimplements(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, scope: Scope
) -> str | None:
    """Return the operator that a function of two operands re-implements, or None."""
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
    meaningless = all(word in _FILLER or word in _BY_WORD or len(word) < 3 for word in words)
    return sign if only_named or (neutral and meaningless) else None


def _snake(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()


def _returned(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, arguments: list[str]
) -> str | None:
    """Return the operator if the function is one operation on its two arguments, otherwise None."""
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
