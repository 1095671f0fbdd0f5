"""Attributes that class patterns read: ``case object(__class__=c)`` is ``c = x.__class__``."""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source

_POSITIONS: Final = "__match_args__"


def check_patterns(
    program: Program, source: Source, reaching: frozenset[str], shift: int
) -> list[Note]:
    """Class patterns that walk from a value to what is behind it.

    Args:
        program: What `read` found.
        source: The text it was read from.
        reaching: Names of attributes that a program must not read.
        shift: Lines that were put before the text.
    """
    notes = []
    for pattern in program.patterns:
        bad = next((name for name in pattern.kwd_attrs if name in reaching), None)
        if bad is not None:
            message = f"matches .{bad}, which opens the interpreter's internals"
            notes.append(Note("interpreter_internals", message, *source.span(pattern, shift)))
    if _POSITIONS not in program.identifiers and _POSITIONS not in program.read_attributes:
        return notes
    # Patterns without names read the attributes that the class lists.
    plain = _plain_lists(program, reaching)
    changed: list[ast.expr] = [node for node, _ in program.stores if node.id == _POSITIONS]
    changed += [node for node, _ in program.attributes if node.attr == _POSITIONS]
    for node in changed:
        if id(node) not in plain:
            message = "computes the attributes that a pattern reads"
            notes.append(Note("computed_attribute", message, *source.span(node, shift)))
    return notes


def _plain_lists(program: Program, reaching: frozenset[str]) -> set[int]:
    """Targets of ``__match_args__ = ("x", "y")`` in classes."""
    found: set[int] = set()
    for node in program.classes:
        for statement in node.body:
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Tuple):
                continue
            names = [e.value for e in statement.value.elts if isinstance(e, ast.Constant)]
            if len(names) == len(statement.value.elts) and reaching.isdisjoint(names):
                found.update(map(id, statement.targets))
    return found
