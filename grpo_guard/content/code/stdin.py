"""Standard input that is only read, for tasks that feed programs through it.

The object behind ``sys.stdin`` leads on: the class of ``sys.stdin.buffer.raw`` opens any file, and
``sys.stdin = ...`` feeds the program something else. So not the name is allowed but its uses: its
reading methods, and what takes its lines. A name that is given it once is followed.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from typing import Final, TypeAlias

from grpo_guard.content.code.names import words
from grpo_guard.content.code.program import Program

_READS: Final = words("read readline readlines")
# Builtins that take its lines, and the arguments in which they do: next(x, sys.stdin) hands it on.
_TAKES: Final = {
    **dict.fromkeys(words("list tuple set sorted enumerate sum next"), range(1)),
    **dict.fromkeys(words("map filter"), range(1, 16)),
    "zip": range(16),
}
# Names and calls through which one value is followed; more hide it.
_STEPS: Final = 4
Node: TypeAlias = ast.AST


def only_read(program: Program) -> frozenset[int]:
    """Ids of the nodes that stand for standard input and do no more than read it: attributes, names
    of imports, and ``open`` in ``open(0)``. Each use is judged by itself; an import by all uses.
    """
    uses = _Uses(program)
    found: set[int] = set()
    for node, _ in program.attributes:
        base = node.value
        if node.attr != "stdin" or not isinstance(base, ast.Name):
            continue
        if program.aliases.get(base.id) == "sys" and uses.reads(node):
            found.update(uses.chain(node))
    for call, _ in program.calls:
        function = call.func
        if not isinstance(function, ast.Name) or function.id != "open" or not _is_zero(call):
            continue
        if not uses.bound["open"] and uses.reads(call):
            found.add(id(function))
    for statement, scope in program.imports:
        if isinstance(statement, ast.ImportFrom) and statement.module == "sys":
            for alias in statement.names:
                name = alias.asname or alias.name
                if alias.name == "stdin" and uses.holds(name, 0) and scope.kind != "class":
                    found.add(id(alias))
    return frozenset(found)


class _Uses:
    """What is done with a value, from the places where it stands."""

    def __init__(self, program: Program) -> None:
        self.parents = {
            id(child): node
            for node in ast.walk(program.tree)
            for child in ast.iter_child_nodes(node)
        }
        self.bound = Counter(name for scope in program.scopes for name in scope.bound)
        self.loads = defaultdict[str, list[ast.Name]](list)
        for load, _ in program.loads:
            self.loads[load.id].append(load)
        stores = [(store, scope.kind) for store, scope in program.stores]
        # A class hands its names on as attributes, unseen here.
        self.free = {store.id for store, kind in stores if kind != "class"}
        self.times = Counter(store.id for store, _ in stores)

    def chain(self, node: Node) -> list[int]:
        """Ids of the attribute and those that are taken of it."""
        found = [id(node)]
        while isinstance(above := self.parents.get(id(node)), ast.Attribute):
            node = above
            found.append(id(node))
        return found

    def reads(self, node: Node, step: int = 0) -> bool:
        """Whether this use of standard input only reads it."""
        names: list[str] = []
        while isinstance(above := self.parents.get(id(node)), ast.Attribute):
            if not isinstance(above.ctx, ast.Load):
                return False
            node = above
            names.append(above.attr)
        if isinstance(node, ast.Attribute | ast.Name) and not isinstance(node.ctx, ast.Load):
            return False
        if names and names[-1] in _READS:
            return names[:-1] in ([], ["buffer"])
        return names in ([], ["buffer"]) and self._gives_lines(node, step)

    def holds(self, name: str, step: int) -> bool:
        """Whether a name that is bound once is only read from."""
        once = self.bound[name] == 1 and self.times[name] <= 1
        return once and all(self.reads(load, step) for load in self.loads[name])

    def _gives_lines(self, node: Node, step: int) -> bool:
        """Whether the object itself stands where only its lines are taken."""
        above = self.parents.get(id(node))
        if isinstance(above, ast.For | ast.comprehension):
            return above.iter is node
        if isinstance(above, ast.Starred):
            return isinstance(above.ctx, ast.Load)
        if step == _STEPS:
            return False
        if isinstance(above, ast.Call):
            function = above.func
            if not isinstance(function, ast.Name) or self.bound[function.id]:
                return False
            if function.id == "iter":  # of a file, the file
                return len(above.args) == 1 and self._gives_lines(above, step + 1)
            takes = _TAKES.get(function.id, range(0))
            return any(argument is node for argument in above.args[takes.start : takes.stop])
        target: Node | None = None
        if isinstance(above, ast.Assign) and len(above.targets) == 1:
            target = above.targets[0]
        elif isinstance(above, ast.withitem):
            target = above.optional_vars
        if not isinstance(target, ast.Name) or target.id not in self.free:
            return False
        return self.holds(target.id, step + 1)


def _is_zero(call: ast.Call) -> bool:
    if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Constant):
        return False
    return type(call.args[0].value) is int and call.args[0].value == 0
