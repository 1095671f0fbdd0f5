"""Gold solutions as programs: one assignment per step of a worked problem, then a print.

The paper's CODE setting (arXiv 2511.09780, section 2.3 of our notes) asks its models for such a
program: Python inside ``<code>``, statements only, no comments; the last print gives the answer.
"""

import ast
import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from typing import Final

CODE_OPEN: Final = "<code>"
CODE_CLOSE: Final = "</code>"

_NOTE: Final = re.compile(r"<<([^<>]{1,200})>>")
_EXPRESSION: Final = re.compile(r"[-0-9+*/(). ]{1,120}")
_LEADING_ZEROS: Final = re.compile(r"(?<![\d.])0+(?=\d)")
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?|-?\.[0-9]{1,20}")
_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_MOST_STEPS: Final = 40


def program_of(equations: Sequence[tuple[str, str]]) -> tuple[str, Fraction] | None:
    """Return a program that computes ``equations`` in order, and the value that it prints.

    Earlier results are referred to by name, to show where each number comes from.

    Args:
        equations: Left side and result of each equation, such as ``("48 / 2", "24")``.

    Returns:
        The program and the value, or None if an equation cannot be read as numbers combined with +
        - * /, or divides by zero.
    """
    if not 1 <= len(equations) <= _MOST_STEPS:
        return None
    lines, named = list[str](), dict[Fraction, str]()
    values = dict[str, Fraction]()
    for index, (left, stated) in enumerate(equations, 1):
        tree = _parsed(left)
        if tree is None or not _NUMBER.fullmatch(stated):
            return None
        tree = ast.fix_missing_locations(_Named(named).visit(tree))
        try:
            value = _value(tree, values)
        except ZeroDivisionError:
            return None
        name = f"step{index}"
        lines.append(f"{name} = {ast.unparse(tree)}")
        values[name] = value
        named[Fraction(stated)] = name
    lines.append(f"print({name})")
    return "\n".join(lines), value


def notes_of(solution: str) -> list[tuple[str, str]]:
    """Return the calculator notes of a GSM8K solution, ``<<48/2=24>>``, as pairs of texts."""
    notes = islice(_NOTE.finditer(solution), _MOST_STEPS + 1)
    pairs = (note[1].rpartition("=")[::2] for note in notes)
    return [(left.strip(), stated.strip()) for left, stated in pairs]


def in_tags(program: str) -> str:
    """Put ``program`` into ``<code>`` tags, as a completion."""
    return f"{CODE_OPEN}\n{program}\n{CODE_CLOSE}"


def _parsed(left: str) -> ast.expr | None:
    if not _EXPRESSION.fullmatch(left):
        return None
    try:
        tree = ast.parse(_LEADING_ZEROS.sub("", left.strip()), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        return None
    return tree if _plain(tree) else None


def _plain(tree: ast.expr) -> bool:
    match tree:
        case ast.Constant(value=int() | float()):
            return True
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _plain(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _plain(left) and _plain(right)
    return False


class _Named(ast.NodeTransformer):
    """Replaces each number that is a step's result with the step's name."""

    def __init__(self, named: dict[Fraction, str]) -> None:
        self._named = named

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        name = self._named.get(_exact(node))
        return ast.Name(name, ast.Load()) if name else node


def _exact(node: ast.Constant) -> Fraction:
    return Fraction(str(node.value))


def _value(tree: ast.expr, values: dict[str, Fraction]) -> Fraction:
    """Compute an expression exactly. The expression must be one that `_plain` accepts, except that
    it can contain names from ``values``."""
    match tree:
        case ast.Constant():
            return _exact(tree)
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=sign, operand=operand):
            value = _value(operand, values)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _value(left, values), _value(right, values)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
            return a / b
    raise AssertionError(f"unreachable: {ast.dump(tree)}")
