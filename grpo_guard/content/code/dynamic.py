"""Find code that a program creates at run time, which hides what it teaches from static checks.

A *mention* is enough, even without a call: ``e = eval``, ``@exec`` and ``map(eval, ...)`` hide the
call, and an honest solution never needs the name.
"""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.source import Note
from grpo_guard.content.code.view import View
from grpo_guard.content.word_set import word_set

# Noted even if the module rebinds the name: if the rebinding is never run, the builtin is used.
_DYNAMIC: Final = word_set(
    "eval exec compile __import__ breakpoint globals locals execfile reload raw_input "
    "__builtins__ __loader__ __spec__ __build_class__"
)
# Attributes that let a program import a module whose name is given as a string.
_IMPORTING: Final = word_set(
    "__import__ __builtins__ __loader__ __spec__ __globals__ __subclasses__ load_module"
)


def check_dynamic(view: View) -> list[Note]:
    """Find names and attributes that run or import strings, and classes made by ``type(...)``."""
    return _names(view) + _attributes(view) + _made_classes(view)


def _names(view: View) -> list[Note]:
    program = view.program
    notes: list[Note] = []
    if _DYNAMIC.isdisjoint(program.read_names):
        return notes
    for node, scope in program.loads:
        owner = scope.owner(node.id) if node.id in _DYNAMIC else None
        # A parameter or local variable never falls through to the builtin.
        if node.id in _DYNAMIC and (owner is None or owner.kind in ("module", "class")):
            message = f"uses {node.id}, which runs code that cannot be seen here"
            notes.append(view.note("dynamic_code", node, message))
    return notes


def _attributes(view: View) -> list[Note]:
    program = view.program
    if _IMPORTING.isdisjoint(program.read_attributes):
        return []
    return [
        view.note("dynamic_code", node, f"uses .{node.attr}, which imports by name")
        for node, _ in program.attributes
        if node.attr in _IMPORTING and getattr(node.value, "id", "") not in ("self", "cls")
    ]


def _made_classes(view: View) -> list[Note]:
    """Find classes built by ``type("X", (), {...})``, including through a copy of `type`."""
    program = view.program
    notes: list[Note] = []
    if "type" not in program.read_names:
        return notes
    for call, _ in program.calls:
        function = call.func
        count = len(call.args) + len(call.keywords)
        made = count >= 3 and _is_type(function)
        if isinstance(function, ast.Call) and _is_type(function.func) and function.args:
            made |= _is_type(function.args[0])  # type(type)(...)
        if made:
            notes.append(view.note("dynamic_code", call, "builds a class with type()"))
    copied = {id(name) for _, name in program.copies}
    for node, scope in program.loads:
        if node.id == "type" and id(node) in copied and scope.owner("type") is None:
            notes.append(view.note("dynamic_code", node, "passes type on as a value"))
    return notes


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "type"
