"""What runs, and what of it can reach the printed answer.

Flow-insensitive and by name: a function runs if something that runs mentions its name, a value
matters if something that matters mentions it. That never calls useful code dead; it may miss dead
code, which is why these notes only report.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import pairwise
from typing import Final

from grpo_guard.content.code.note import Note, Weight
from grpo_guard.content.code.program import Program, children
from grpo_guard.content.code.scope import Scope
from grpo_guard.content.code.source import Source

_LEAVES: Final = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class Liveness:
    """Which functions and classes of a program can run.

    Args:
        program: What `read` found.
    """

    def __init__(self, program: Program) -> None:
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
        self._live: set[int] = set()
        seen: set[str] = set()
        waiting = [program.module]
        while waiting:
            scope = waiting.pop()
            if id(scope) in self._live:
                continue
            self._live.add(id(scope))
            waiting += [child for child in inner[id(scope)] if _runs_with_parent(child)]
            for name in mentions[id(scope)] - seen:
                seen.add(name)
                waiting += named[name]

    def runs(self, scope: Scope) -> bool:
        """Whether code in ``scope`` can run."""
        return id(scope) in self._live


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
            notes.append(Note("never_called", message, start, end, Weight.DECORATION, scope.name))
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
            if isinstance(statement, ast.If | ast.While):
                never = _constant(statement.test)
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
            Weight.DECORATION,
        )
        for first, last in dead
    ]


def _is_yield(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom)


def _constant(test: ast.expr) -> bool | None:
    """The truth of a test made of literals alone; None where it depends on anything."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _constant(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.List | ast.Tuple | ast.Dict | ast.Set):
        return (
            False
            if not any(
                True for _ in ast.iter_child_nodes(test) if not isinstance(_, ast.expr_context)
            )
            else None
        )
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0])
    return None


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool | None:
    if not isinstance(left, ast.Constant) or not isinstance(right, ast.Constant):
        return None
    a, b = left.value, right.value
    if isinstance(operator, ast.Eq | ast.NotEq):
        return (a == b) == isinstance(operator, ast.Eq)
    if isinstance(a, int | float) and isinstance(b, int | float):
        if isinstance(operator, ast.Lt | ast.LtE):
            return a < b or (a == b and isinstance(operator, ast.LtE))
        if isinstance(operator, ast.Gt | ast.GtE):
            return a > b or (a == b and isinstance(operator, ast.GtE))
    return None


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
            notes.append(Note("unused_value", message, start, end, Weight.HARMLESS, name.id))
    for node, _ in program.imports:
        for alias in node.names:
            local = alias.asname or alias.name.partition(".")[0]
            if local not in needs and local != "*" and getattr(node, "module", "") != "__future__":
                start, end = source.span(node, shift)
                message = f"imports {local[:60]} and never uses it"
                notes.append(Note("unused_import", message, start, end, Weight.HARMLESS, local))
    return notes


def _needed(program: Program) -> set[str]:
    """Names read by anything but an assignment, and what those assignments read in turn."""
    feeds: dict[str, set[str]] = defaultdict(set)
    stack: list[tuple[ast.AST, tuple[str, ...]]] = [(program.tree, ())]
    needed: set[str] = set()
    while stack:
        node, targets = stack.pop()
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value:
            goals = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(goal, ast.Name) for goal in goals):
                targets = tuple(goal.id for goal in goals if isinstance(goal, ast.Name))
                stack.append((node.value, targets))
                continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            if targets:
                for target in targets:
                    feeds[target].add(node.id)
            else:
                needed.add(node.id)
        stack.extend([(child, targets) for child in children(node)])
    waiting = list(needed)
    while waiting:
        for name in feeds.pop(waiting.pop(), ()):
            if name not in needed:
                needed.add(name)
                waiting.append(name)
    return needed
