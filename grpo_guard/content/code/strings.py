"""Which expressions and names hold text, as far as it can be told without running anything."""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.names import words
from grpo_guard.content.code.program import Program

MAX_LEVELS: Final = 40
_MAKERS: Final = words("str chr repr ascii format")
_METHODS: Final = words(
    "join format format_map replace lower upper swapcase casefold strip lstrip rstrip title decode "
    "translate removeprefix removesuffix ljust rjust center zfill"
)
# Of these methods, arrays and expressions have their own.
_SHARED: Final = words("replace format")


class Strings:
    """Tells texts from numbers.

    Args:
        program: What `read` found.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._names: set[str] = set()
        # A name may get its text from a name that stands further down.
        for _ in range(3):
            for name, value in program.literals:
                if name not in self._names and self.is_text(value):
                    self._names.add(name)

    def is_text(self, node: ast.expr, levels: int = MAX_LEVELS) -> bool:
        """Whether an expression surely holds text: a literal, or something built with one."""
        while isinstance(node, ast.BinOp | ast.Subscript):
            if isinstance(node, ast.Subscript):
                # One letter or a stretch of a text; of a dictionary it may be anything.
                node = node.value
                continue
            if levels <= 0 or self.is_text(node.right, levels // 2):
                return levels > 0 and isinstance(node.op, ast.Add | ast.Mult)
            node = node.left
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str)
        if isinstance(node, ast.JoinedStr):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._names
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Name):
            return function.id in _MAKERS
        if not isinstance(function, ast.Attribute) or function.attr not in _METHODS:
            return False
        return function.attr not in _SHARED or (
            levels > 0 and self.is_text(function.value, levels - 1)
        )
