"""Scopes of a program: who binds a name, and who sees it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class, function, lambda or comprehension.

    Args:
        kind: ``"module"``, ``"class"``, ``"function"`` or ``"expression"``.
        name: Of a class or function.
        parent: The scope around it; None for the module.
        node: The node that opens it.
    """

    kind: str
    name: str
    parent: Scope | None
    node: ast.AST
    bound: dict[str, int] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)

    def bind(self, name: str, line: int) -> None:
        """Note that the scope gives ``name`` a value; the first line counts."""
        bound = self.root.bound if name in self.outer else self.bound
        if line < bound.get(name, line + 1):
            bound[name] = line

    @property
    def root(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def owner(self, name: str) -> Scope | None:
        """The innermost scope that binds ``name``; class scopes around functions count too."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.outer:  # global: whatever stands between does not hide the module's
                scope = scope.root
            if name in scope.bound:
                return scope
            scope = scope.parent
        return None
