"""What the pass over a tree carries along: the program so far, and what is left to read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from grpo_guard.content.code.program import Program
from grpo_guard.content.code.scope import Scope


class Place:
    """Where a node stands.

    Args:
        scope: The scope it is in.
        in_try: Whether a ``try`` of that scope is around it.
        targets: The names that an assignment gives the value it is part of; () outside of one.
    """

    __slots__ = ("in_try", "scope", "targets")

    def __init__(self, scope: Scope, in_try: bool = False, targets: tuple[str, ...] = ()) -> None:
        self.scope = scope
        self.in_try = in_try
        self.targets = targets


class Reader:
    """The program as far as it has been read, and what is left to read."""

    __slots__ = ("program", "stack")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stack: list[tuple[ast.AST, Place]] = []

    def push(self, node: ast.AST | None, place: Place) -> None:
        if node is not None:
            self.stack.append((node, place))

    def push_all(self, nodes: Iterable[ast.AST | None], place: Place) -> None:
        self.stack += [(node, place) for node in nodes if node is not None]

    def bind(self, name: str, node: Any, scope: Scope) -> None:
        scope.bind(name, node.lineno)
        self.identify(name, node)

    def identify(self, name: str, node: Any) -> None:
        """Note where a name stands; its first place counts."""
        self.program.identifiers.setdefault(name, node)


Handler: TypeAlias = Callable[[Reader, Any, Place], None]


def body_of(reader: Reader, body: list[ast.stmt], place: Place) -> None:
    if body:
        reader.program.bodies.append(body)
        # Backwards, so that the pass meets statements in their order: first places come first.
        reader.stack += [(statement, place) for statement in reversed(body)]


def anything(reader: Reader, node: ast.AST, place: Place) -> None:
    """A node without a handler of its own: its children, and its statement lists as bodies."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            if value and isinstance(value[0], ast.stmt):
                body_of(reader, value, place)
            else:
                reader.push_all((v for v in value if isinstance(v, ast.AST)), place)
        elif isinstance(value, ast.AST):
            reader.stack.append((value, place))


def nothing(reader: Reader, node: ast.AST, place: Place) -> None:
    """Operators and contexts say nothing by themselves."""
