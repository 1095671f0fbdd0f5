"""What runs, and what of it can reach the printed answer.

Flow-insensitive and by name: a function runs if something that runs mentions its name, a value
matters if something that matters mentions it. That never calls useful code dead; it may miss dead
code, which is why these notes only report.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from itertools import pairwise
from typing import Final

from grpo_guard.content.code.fold import truth_of
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.scope import Scope
from grpo_guard.content.code.source import Source

_LEAVES: Final = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class Liveness:
    """Which functions and classes of a program can run.

    Args:
        program: What `read` found.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def _live(self) -> set[int]:
        return _reached(self.program)

    @cached_property
    def _read_at_top(self) -> set[str]:
        module = self.program.module
        return {name.id for name, scope in self.program.loads if scope is module}

    def runs(self, scope: Scope) -> bool:
        """Whether code in ``scope`` can run."""
        # Most functions are named by the main program: the whole graph is seldom needed.
        parent = scope.parent
        if parent is None or (parent.parent is None and scope.name in self._read_at_top):
            return True
        return id(scope) in self._live


def _reached(program: Program) -> set[int]:
    """Identities of the scopes that code which runs leads to."""
    mentions: dict[int, set[str]] = defaultdict(set)
    for node, scope in program.loads:
        mentions[id(scope)].add(node.id)
    for attribute, scope in program.attributes:
        mentions[id(scope)].add(attribute.attr)
    inner: dict[int, list[Scope]] = defaultdict(list)
    named: dict[str, list[Scope]] = defaultdict(list)
    for scope in program.scopes:
        if scope.parent is not None:
            inner[id(scope.parent)].append(scope)
        if scope.name:
            named[scope.name].append(scope)
    live: set[int] = set()
    seen: set[str] = set()
    waiting = [program.module]
    while waiting:
        scope = waiting.pop()
        if id(scope) in live:
            continue
        live.add(id(scope))
        waiting += [child for child in inner[id(scope)] if _runs_with_parent(child)]
        for name in mentions[id(scope)] - seen:
            seen.add(name)
            waiting += named[name]
    return live


def _runs_with_parent(scope: Scope) -> bool:
    """Lambdas, comprehensions and class bodies run where they stand; special methods, decorated
    functions and overrides run without being named."""
    if scope.kind in ("expression", "class"):
        return True
    decorated = bool(getattr(scope.node, "decorator_list", []))
    special = scope.name.startswith("__") and scope.name.endswith("__")
    around = scope.parent.node if scope.parent else None
    inherits = isinstance(around, ast.ClassDef) and bool(around.bases)
    return decorated or special or inherits


def check_decoration(program: Program, source: Source, live: Liveness, shift: int) -> list[Note]:
    """Code that cannot reach the answer. Nothing to say of a module without a main program."""
    if not program.runs:
        return []
    notes = _never_called(program, source, live, shift) + _unreachable(program, source, shift)
    return notes + _unused(program, source, shift)


def _never_called(program: Program, source: Source, live: Liveness, shift: int) -> list[Note]:
    notes = []
    for scope in program.scopes:
        if scope.kind == "function" and scope.parent is program.module and not live.runs(scope):
            start, end = source.span(scope.node, shift)
            message = f"defines {scope.name[:60]}, which is never called"
            notes.append(Note("never_called", message, start, end, scope.name))
    return notes


def _unreachable(program: Program, source: Source, shift: int) -> list[Note]:
    dead: list[tuple[ast.AST, ast.AST]] = []
    for body in program.bodies:
        for statement, following in pairwise(body):
            if isinstance(statement, _LEAVES):
                # A generator that yields nothing is written "return; yield".
                if not _is_yield(following):
                    dead.append((following, body[-1]))
                break
        for statement in body:
            kind = type(statement)
            if kind is ast.If or kind is ast.While:
                assert isinstance(statement, ast.If | ast.While)
                never = truth_of(statement.test)
                if never is False:
                    dead.append((statement.body[0], statement.body[-1]))
                elif never is True and isinstance(statement, ast.If) and statement.orelse:
                    dead.append((statement.orelse[0], statement.orelse[-1]))
    return [
        Note(
            "unreachable_code",
            "holds code that can never run",
            source.span(first, shift)[0],
            source.span(last, shift)[1],
        )
        for first, last in dead
    ]


def _is_yield(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom)


def _unused(program: Program, source: Source, shift: int) -> list[Note]:
    """Names that get a value which nothing that matters reads: `unused_value`, `unused_import`."""
    needs = _needed(program)
    notes = []
    seen: set[str] = set()
    for name, _ in program.stores:
        if name.id not in needs and name.id not in seen and not name.id.startswith("_"):
            seen.add(name.id)
            start, end = source.span(name, shift)
            message = f"gives {name.id[:60]} a value that never reaches the output"
            notes.append(Note("unused_value", message, start, end, name.id))
    for node, _ in program.imports:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if local not in needs and local != "*" and getattr(node, "module", "") != "__future__":
                start, end = source.span(node, shift)
                message = f"imports {local[:60]} and never uses it"
                notes.append(Note("unused_import", message, start, end, local))
    return notes


def _needed(program: Program) -> set[str]:
    """Names read by anything but an assignment, and what those assignments read in turn."""
    needed = set(program.needed)
    waiting = [name for name in program.feeds if name in needed]
    while waiting:
        for name in program.feeds[waiting.pop()]:
            if name not in needed:
                needed.add(name)
                if name in program.feeds:
                    waiting.append(name)
    return needed
