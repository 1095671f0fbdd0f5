"""What one pass over a tree finds: its scopes, names, calls, strings and statement lists."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

from grpo_guard.content.code.fold import METHODS, Folder
from grpo_guard.content.code.names import words
from grpo_guard.content.code.scope import Scope

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_BUILDERS: Final = words("chr str reversed bytes bytearray")
_SPELLING: Final = (ast.Add, ast.Mod, ast.Mult)


@dataclass
class Program:
    """What one pass found. Lists are in no particular order; places come from the nodes."""

    tree: ast.Module
    module: Scope
    imports: list[tuple[ast.Import | ast.ImportFrom, Scope]] = field(default_factory=list)
    loads: list[tuple[ast.Name, Scope]] = field(default_factory=list)
    stores: list[tuple[ast.Name, Scope]] = field(default_factory=list)
    attributes: list[tuple[ast.Attribute, Scope]] = field(default_factory=list)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    texts: list[ast.Constant] = field(default_factory=list)
    operations: list[ast.BinOp] = field(default_factory=list)
    formatted: list[ast.JoinedStr] = field(default_factory=list)
    subscripts: list[ast.Subscript] = field(default_factory=list)
    sequences: list[ast.List | ast.Tuple | ast.Set] = field(default_factory=list)
    integers: list[ast.Constant] = field(default_factory=list)
    loops: list[tuple[ast.While | ast.For, bool]] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    patterns: list[ast.MatchClass] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    bodies: list[list[ast.stmt]] = field(default_factory=list)
    called: set[int] = field(default_factory=set)
    identifiers: dict[str, ast.AST] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    copies: list[tuple[str, ast.Name]] = field(default_factory=list)
    literals: list[tuple[str, ast.expr]] = field(default_factory=list)
    lambdas: dict[int, str] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    feeds: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def runs(self) -> bool:
        """Whether it does anything by itself: a module of definitions alone has no answer."""
        return any(
            isinstance(node, ast.Expr | ast.For | ast.While | ast.If | ast.With)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            for node in self.tree.body
        )

    @cached_property
    def read_names(self) -> frozenset[str]:
        """All names that are read: most checks are about few names, and end here."""
        return frozenset([name.id for name, _ in self.loads])

    @cached_property
    def read_attributes(self) -> frozenset[str]:
        """All names of attributes."""
        return frozenset([attribute.attr for attribute, _ in self.attributes])

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Names that the whole program gives one value: it can be read in their place."""
        if not self.literals:
            return {}
        times = Counter(name.id for name, _ in self.stores)
        bound = Counter(name for scope in self.scopes for name in scope.bound)
        return {n: v for n, v in self.literals if times[n] == 1 and bound[n] == 1}

    @cached_property
    def spelling(self) -> list[ast.expr]:
        """Expressions that may spell a string, the innermost and the earlier ones first: most
        calls, sums and subscripts cannot."""
        found: list[ast.expr] = []
        quiet = METHODS.isdisjoint(self.read_attributes) and _BUILDERS.isdisjoint(self.read_names)
        for call, _ in () if quiet else self.calls:
            function = call.func
            if isinstance(function, ast.Attribute):
                if function.attr in METHODS:
                    found.append(call)
            elif isinstance(function, ast.Name) and function.id in _BUILDERS:
                found.append(call)
        if self.texts or found:
            found += [op for op in self.operations if isinstance(op.op, _SPELLING)]
            found += [joined for joined in self.formatted if len(joined.values) > 1]
            found += self.subscripts
        return sorted(found, key=_ending)

    @cached_property
    def folder(self) -> Folder:
        """What its expressions spell. All of them are read here once, in an order in which none is
        deeper than its own parts."""
        folder = Folder(self.constants)
        for node in self.spelling:
            folder.text(node)
        return folder

    @cached_property
    def certain(self) -> dict[str, int]:
        """Names that a top-level statement binds whenever it is reached, and its line."""
        found: dict[str, int] = {}
        for statement in self.tree.body:
            for name in _bound_by(statement):
                found.setdefault(name, statement.lineno)
        return found


def _ending(node: ast.expr) -> tuple[int, int, int, int]:
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    return (*end, -node.lineno, -node.col_offset)


def _bound_by(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return []
    flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    # ``open = open`` gives the builtin a second life.
    value = statement.value
    itself = value.id if isinstance(value, ast.Name) else ""
    return [t.id for t in flat if isinstance(t, ast.Name) and t.id != itself]


def base_of(node: ast.AST) -> ast.AST:
    """The name that an attribute, call or subscript chain begins with."""
    while True:
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return node
