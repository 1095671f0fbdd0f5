"""Text made of numbers: ``chr(c) for c in [...]``, ``map(chr, ...)``, ``bytes([...])``."""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.fold import integers_of
from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.scope import Scope
from grpo_guard.content.code.source import Source

_MAKERS: Final = words("bytes bytearray map chr")


def check_character_codes(program: Program, source: Source, shift: int) -> list[Note]:
    """``chr(c) for c in [...]``, ``map(chr, [...])``, ``bytes([...])`` and shifts of letters."""
    notes = []
    listed: bool | None = None
    for call, scope in () if _MAKERS.isdisjoint(program.read_names) else program.calls:
        function = call.func
        name = function.id if isinstance(function, ast.Name) else ""
        if name not in _MAKERS or not call.args:
            continue
        if name == "chr":
            listed = _lists_numbers(program) if listed is None else listed
            found = _decodes(call.args[0], scope, listed)
        elif name == "map":
            found = isinstance(call.args[0], ast.Name) and call.args[0].id == "chr"
        else:
            found = _of_numbers(call.args[0])
        if found:
            message = f"builds text from numbers with {name}"
            notes.append(Note("encoded_payload", message, *source.span(call, shift)))
    return notes


def _lists_numbers(program: Program) -> bool:
    listed = (integers_of(sequence) for sequence in program.sequences)
    return any(numbers is not None and len(numbers) > 3 for numbers in listed)


def _decodes(argument: ast.expr, scope: Scope, listed: bool) -> bool:
    """Whether ``chr(argument)`` reads numbers of the program's own. Shifting letters takes an
    ``ord``, and an alphabet a ``range``; a hidden text has a list of numbers."""
    names = {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
    if isinstance(argument, ast.Constant) or "ord" in names or not names:
        return False
    generators: list[ast.comprehension] = getattr(scope.node, "generators", [])
    for generator in generators:
        over = generator.iter
        if isinstance(over, ast.Call) and getattr(over.func, "id", "") in ("range", "enumerate"):
            return False
        if _over_numbers(scope.node):
            return True
    return listed


def _of_numbers(node: ast.expr) -> bool:
    """Whether bytes are made of numbers that stand in the program."""
    numbers = integers_of(node)
    return (numbers is not None and len(numbers) > 3) or _over_numbers(node)


def _over_numbers(node: ast.AST) -> bool:
    """Whether a comprehension runs over a literal list of numbers, or over text it shifts."""
    generators: list[ast.comprehension] = getattr(node, "generators", [])
    return any(
        isinstance(g.iter, ast.List | ast.Tuple)
        or (isinstance(g.iter, ast.Constant) and isinstance(g.iter.value, str | bytes))
        for g in generators
    )
