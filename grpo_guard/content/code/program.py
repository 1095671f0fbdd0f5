"""The result of one pass over a syntax tree: scopes, names, imports, calls, strings, loops."""

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from grpo_guard.core.cached_property import cached_property

MAX_SUM: Final = 200
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class, function, lambda or comprehension, plus the names it binds.

    Args:
        kind: ``"module"``, ``"class"``, ``"function"`` or ``"expression"``.
        name: Name of the class or function, otherwise empty.
        parent: The enclosing scope; None for the module.
        node: The node that opens the scope.
        bound: Names bound in the scope, with the first line of each.
        outer: Names declared global in the scope.
    """

    kind: str
    name: str
    parent: "Scope | None"
    node: ast.AST
    bound: dict[str, int] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)

    def bind(self, name: str, line: int) -> None:
        """Record that the scope binds ``name``, keeping the first line on which it does."""
        bound = self.root.bound if name in self.outer else self.bound
        if line < bound.get(name, line + 1):
            bound[name] = line

    @property
    def root(self) -> "Scope":
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def owner(self, name: str) -> "Scope | None":
        """Return the innermost scope that binds ``name``, including classes around functions."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.outer:  # global: skip scopes between this one and the module
                scope = scope.root
            if name in scope.bound:
                return scope
            scope = scope.parent
        return None


@dataclass
class Program:
    """Everything found in a single pass over a syntax tree.

    Lists are in no particular order; positions come from the nodes.
    """

    tree: ast.Module
    module: Scope
    imports: list[tuple[ast.Import | ast.ImportFrom, Scope]] = field(default_factory=list)
    loads: list[tuple[ast.Name, Scope]] = field(default_factory=list)
    stores: list[tuple[ast.Name, Scope]] = field(default_factory=list)
    attributes: list[tuple[ast.Attribute, Scope]] = field(default_factory=list)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    texts: list[ast.Constant] = field(default_factory=list)
    operations: list[ast.BinOp] = field(default_factory=list)
    loops: list[ast.While | ast.For] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    called: set[int] = field(default_factory=set)
    identifiers: dict[str, ast.AST] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    copies: list[tuple[str, ast.Name]] = field(default_factory=list)
    literals: list[tuple[str, ast.expr]] = field(default_factory=list)
    references: list[tuple[str, ast.Attribute]] = field(default_factory=list)
    lambdas: dict[int, str] = field(default_factory=dict)

    @cached_property
    def runs(self) -> bool:
        """Whether the program does anything by itself; definitions alone give no answer."""
        return any(
            isinstance(node, ast.Expr | ast.For | ast.While | ast.If | ast.With)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            for node in self.tree.body
        )

    @cached_property
    def defined(self) -> frozenset[str]:
        """Names that the module binds other than by import."""
        nodes = (node for node, scope in self.imports if scope is self.module)
        imported = {a.asname or a.name.partition(".")[0] for node in nodes for a in node.names}
        return frozenset(self.module.bound.keys() - imported)

    @property
    def packages(self) -> frozenset[str]:
        """The top-level names of all modules that the program imports or imports from."""
        members = (module for module, _ in self.members.values())
        return frozenset(m.partition(".")[0] for m in (*self.aliases.values(), *members))

    @cached_property
    def read_names(self) -> frozenset[str]:
        """All names read by the program. Most checks concern few names and can stop here."""
        return frozenset([name.id for name, _ in self.loads])

    @cached_property
    def read_attributes(self) -> frozenset[str]:
        """The names of all attributes."""
        return frozenset([attribute.attr for attribute, _ in self.attributes])

    @cached_property
    def functions(self) -> dict[str, tuple[str, str]]:
        """The (module, member) behind each name, even after ``f = importlib.import_module``."""
        found = dict(self.members)
        for name, value in self.references:
            if isinstance(value.value, ast.Name) and value.value.id in self.aliases:
                found.setdefault(name, (self.aliases[value.value.id], value.attr))
        for name, copied in self.copies:
            if copied.id in found:
                found.setdefault(name, found[copied.id])
        return found

    def text_of(self, node: ast.expr) -> str | None:
        """Return the text of a literal, a sum of literals, or a name for either; otherwise None.

        A very long sum also gives None, because each name in a sum can refer to another sum.
        """
        parts: list[ast.expr] = [node]
        texts: list[str] = []
        steps = 0
        while parts:
            part = parts.pop()
            steps += 1
            if steps > MAX_SUM:
                return None
            if isinstance(part, ast.Name):
                part = self.constants.get(part.id, part)
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
                parts += [part.right, part.left]
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                texts.append(part.value)
            else:
                return None
        return "".join(texts)

    @property
    def mentioned(self) -> frozenset[str]:
        """All names read by the program, plus the names of all attributes."""
        return self.read_names | self.read_attributes

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names with a single value in the whole program, each with the value to substitute."""
        if not self.literals:
            return {}
        times = Counter(name.id for name, _ in self.stores)
        bound = Counter(name for scope in self.scopes for name in scope.bound)
        once = {n: v for n, v in self.literals if times[n] == 1 and bound[n] == 1}
        return {n: v for n, v in once.items() if n not in self.deleted}

    def is_dead(self, scope: Scope) -> bool:
        """Whether the scope is in a top-level function whose name is never read."""
        while scope.parent is not None and scope.parent.parent is not None:
            scope = scope.parent
        if scope.kind != "function" or getattr(scope.node, "decorator_list", []):
            return False
        return scope.name not in self.read_names


def base_of(node: ast.AST) -> ast.AST:
    """Return the node at the start of a chain of attributes, calls or subscripts."""
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return node


def integer_of(node: ast.expr) -> int | None:
    """Return the value of an integer literal, possibly negative, or None for anything else."""
    negative = False
    # A loop, because thousands of signs pass the parser but would be too deep for recursion.
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, negative = node.operand, not negative
    value = node.value if isinstance(node, ast.Constant) else None
    if type(value) is not int:
        return None
    return -value if negative else value
