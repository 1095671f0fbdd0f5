"""Texts that sympy evaluates: ``simplify("...")`` hands a text to ``eval``, as most of it does."""

from __future__ import annotations

import ast
import re
from typing import Final

from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source
from grpo_guard.content.code.strings import Strings

# What only gives a name to a symbol, or prints.
_NAMING: Final = words(
    "Symbol symbols Dummy Wild Function UndefinedFunction var IndexedBase Idx MatrixSymbol pprint "
    "pretty latex print_latex Str Integer Float Rational pretty_print plot mathematica_code "
    "RandomSymbol Die Coin Normal Uniform Binomial Bernoulli Poisson Exponential Geometric"
)
_CALLED: Final = (
    "eval exec compile open input getattr setattr delattr vars dir globals locals breakpoint "
    "help type object chr bytes bytearray memoryview super classmethod staticmethod property map "
    "filter sympify parse_expr lambdify import os sys subprocess"
)
# A formula has names, numbers and signs; none of these are in one.
_NO_FORMULA: Final = re.compile(rf"__|['\"\\`@;:]|\blambda\b|\b(?:{'|'.join(_CALLED.split())})\b")
_PYTHON: Final = words(
    "print str len int float repr sorted list tuple set dict format ord chr max min sum any all "
    "isinstance enumerate zip range reversed"
)


def check_algebra(program: Program, source: Source, shift: int) -> list[Note]:
    """Texts given to sympy's functions that are no formula, or that are put together unseen."""
    modules = {name for name, module in program.aliases.items() if _is_sympy(module)}
    members = {name for name, (module, _) in program.members.items() if _is_sympy(module)}
    if not modules and not members:
        return []
    every = "*" in members
    strings = Strings(program)
    notes = []
    for call, scope in program.calls:
        name = _function(call.func, program, modules, members)
        if name is None and every and isinstance(call.func, ast.Name):
            # from sympy import *: whatever nothing else defines.
            name = call.func.id if scope.owner(call.func.id) is None else None
        if name is None or name in _NAMING or name in _PYTHON or name.endswith("Error"):
            continue
        for argument in _given(call):
            if strings.is_text(argument) and (problem := _problem(argument, program)):
                message = f"{name[:40]} evaluates {problem}"
                notes.append(Note("dynamic_code", message, *source.span(call, shift)))
                break
    return notes


def _is_sympy(module: str) -> bool:
    return module.partition(".")[0] == "sympy"


def _function(
    function: ast.expr, program: Program, modules: set[str], members: set[str]
) -> str | None:
    """The name of a function of sympy; None for any other."""
    if isinstance(function, ast.Name):
        return program.members[function.id][1] if function.id in members else None
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr == "subs":  # the method of any expression
        return "subs"
    base = function.value
    while isinstance(base, ast.Attribute):
        base = base.value
    return function.attr if isinstance(base, ast.Name) and base.id in modules else None


def _given(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call, and what stands in the lists among them."""
    found: list[ast.expr] = []
    for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if isinstance(value, ast.Starred):
            value = value.value
        found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return found


def _problem(argument: ast.expr, program: Program) -> str | None:
    text = program.folder.text(argument)
    if text is None:
        return "a text that is put together"
    if match := _NO_FORMULA.search(text):
        return f"a text with {match[0][:40]!r}, which is no formula"
    return None
