"""`View`: a program, plus everything the checks need."""

from __future__ import annotations

import ast
from collections.abc import Set
from dataclasses import dataclass, replace

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.parse import Parsed
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.read import read
from grpo_guard.content.code.source import Note, Source


@dataclass(frozen=True, slots=True)
class View:
    """The input of a check.

    Args:
        program: The program, as returned by `read`.
        source: The text from which the program was read.
        shift: Number of lines prepended to the text to make it parse.
        modules: The modules that can be imported.
        asked: The question, in lower case.
        names: Names defined by other blocks and by the question.
        theirs: Subset of ``names`` that other blocks define rather than import.
        defined: Functions and classes defined by the question.
        strict: Whether the block is more than a program's output (``sin(a*t)/a``).
    """

    program: Program
    source: Source
    shift: int
    modules: Modules
    asked: str
    names: Set[str]
    theirs: Set[str]
    defined: Set[str]
    strict: bool

    def note(self, kind: str, node: ast.AST, message: str) -> Note:
        """Make a note about a node."""
        return Note(kind, message, *self.source.span(node, self.shift))

    def inside(self, parsed: Parsed, source: Source) -> View | None:
        """Return the view of a program that this one runs from a string, or None if unparsable."""
        if parsed.tree is None:
            return None
        inner = read(parsed.tree)
        inner.module.bound.update(self.program.module.bound)
        return replace(self, program=inner, source=source, shift=parsed.shift)
