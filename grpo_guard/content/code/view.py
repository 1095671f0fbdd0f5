"""One program and all that its checks look at."""

from __future__ import annotations

import ast
from collections.abc import Set
from dataclasses import dataclass

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Note, Source


@dataclass(frozen=True, slots=True)
class View:
    """What a check is given.

    Args:
        program: What `read` found.
        source: The text it was read from.
        shift: Lines that were put before the text.
        modules: What may be imported.
        asked: The question, in lower case.
        names: Names that other blocks and the question define.
        theirs: Of these, what other blocks define themselves.
        defined: Of these, functions and classes of the question.
        strict: Whether it is more than the output of a program (``sin(a*t)/a``).
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
        """A note about a node."""
        return Note(kind, message, *self.source.span(node, self.shift))
