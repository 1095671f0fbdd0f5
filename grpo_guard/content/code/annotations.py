"""Annotations that run: ``functools.singledispatch`` evaluates the strings among them."""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source

_EVALUATING: Final = words("singledispatch singledispatchmethod")


def check_annotations(program: Program, source: Source, shift: int) -> list[Note]:
    """Annotations of a program with ``singledispatch`` that are no plain type."""
    taken = {member for module, member in program.members.values() if module == "functools"}
    if "*" not in taken and _EVALUATING.isdisjoint(taken | program.read_attributes):
        return []
    notes = []
    for scope in program.scopes:
        arguments = getattr(scope.node, "args", None)
        if not isinstance(arguments, ast.arguments) or isinstance(scope.node, ast.Lambda):
            continue
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
        given = [argument.annotation for argument in every]
        for annotation in [*given, getattr(scope.node, "returns", None)]:
            if annotation is not None and not _is_type(annotation):
                message = "computes an annotation, which singledispatch evaluates"
                notes.append(Note("dynamic_code", message, *source.span(annotation, shift)))
    changed = [n for n, _ in program.attributes if n.attr == "__annotations__"]
    message = "changes annotations, which singledispatch evaluates"
    notes += [Note("dynamic_code", message, *source.span(node, shift)) for node in changed]
    return notes


def _is_type(node: ast.expr) -> bool:
    """``int``, ``"Node"``, ``list[int] | None``; not a sum, a call or a text that is more."""
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Constant):
            text = part.value
            if isinstance(text, str) and not all(c.isalnum() or c in "_.[], |" for c in text):
                return False
        elif isinstance(part, ast.BinOp):
            if not isinstance(part.op, ast.BitOr):
                return False
            stack += [part.left, part.right]
        elif isinstance(part, ast.Subscript):
            stack += [part.value, part.slice]
        elif isinstance(part, ast.Tuple | ast.List):
            stack += part.elts
        elif not isinstance(part, ast.Name | ast.Attribute):
            return False
    return True
