"""Strings that profilers, timers and debuggers run: ``timeit.timeit("import calc")``."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Final

from grpo_guard.content.code.dynamic import check_dynamic
from grpo_guard.content.code.imports import check_imports, scan
from grpo_guard.content.code.parse import parse
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.read import read
from grpo_guard.content.code.source import Note, Source, words
from grpo_guard.content.code.view import View

MAX_STRINGS: Final = 50
_MODULES: Final = words("timeit cProfile profile pdb bdb trace")
_RUNNING: Final = words("timeit repeat Timer run runctx runeval set_trace")
_BUILDING: Final = words("join decode translate fromhex b64decode unhexlify decompress")


def check_runs(view: View, levels: int = 3) -> list[Note]:
    """Imports, and strings run in turn, in strings that a module of these runs.

    A string that is put together from letters rejects; one with gaps is read without them.
    """
    program = view.program
    imported = {module.partition(".")[0] for module in program.aliases.values()}
    imported.update(module.partition(".")[0] for module, _ in program.members.values())
    if levels == 0 or _MODULES.isdisjoint(imported):
        return []
    notes: list[Note] = []
    left = MAX_STRINGS
    for call, _ in program.calls:
        if left and _runs(call.func, program):
            for argument in [*call.args[:2], *(keyword.value for keyword in call.keywords)]:
                left -= 1
                notes += [
                    view.note(kind, call, message)
                    for kind, message in _found(argument, view, levels)
                ]
    return notes


def _runs(function: ast.expr, program: Program) -> bool:
    if isinstance(function, ast.Name):
        module, member = program.functions.get(function.id, ("", ""))
        return member in _RUNNING and module in _MODULES
    return isinstance(function, ast.Attribute) and function.attr in _RUNNING


def _found(argument: ast.expr, view: View, levels: int) -> list[tuple[str, str]]:
    program = view.program
    if isinstance(argument, ast.Name):
        argument = program.constants.get(argument.id, argument)
    text = program.text_of(argument)
    if text is not None:
        return [(note.kind, note.message) for note in _inside(text, view, levels)]
    if isinstance(argument, ast.Lambda | ast.Name | ast.Attribute | ast.Constant):
        return []
    texts: list[str] = []
    for part in ast.walk(argument):
        if isinstance(part, ast.Call):
            name = getattr(part.func, "attr", getattr(part.func, "id", ""))
            if name in _BUILDING or name == "chr":
                return [("dynamic_code", "runs a string that is put together from parts")]
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            texts.append(part.value)
    return [(note.kind, note.message) for text in texts for note in scan(text, view.modules)]


def _inside(text: str, view: View, levels: int) -> list[Note]:
    source = Source(text)
    parsed = parse(source)
    if parsed.tree is None:
        return scan(text, view.modules)
    inner = read(parsed.tree)
    # What is timed is usually in the program itself.
    inner.imports = [
        (node, scope)
        for node, scope in inner.imports
        if "__main__" not in (getattr(node, "module", ""), node.names[0].name)
    ]
    inner.module.bound.update(view.program.module.bound)
    inside = replace(view, program=inner, source=source, shift=parsed.shift)
    return check_imports(inside) + check_dynamic(inside) + check_runs(inside, levels - 1)
