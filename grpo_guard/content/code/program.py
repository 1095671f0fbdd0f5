"""One pass over a tree: its scopes, names, calls, strings and statement lists.

The pass keeps its own stack, so that no depth of nesting becomes a RecursionError, and the checks
read its lists instead of walking again.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from grpo_guard.content.code.scope import Scope

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_BODIES: Final = ("body", "orelse", "finalbody")


@dataclass(slots=True)
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
    subscripts: list[ast.Subscript] = field(default_factory=list)
    sequences: list[ast.List | ast.Tuple | ast.Set] = field(default_factory=list)
    integers: list[ast.Constant] = field(default_factory=list)
    loops: list[tuple[ast.While, bool]] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    bodies: list[list[ast.stmt]] = field(default_factory=list)
    called: set[int] = field(default_factory=set)
    identifiers: dict[str, ast.AST] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    copies: list[tuple[str, str]] = field(default_factory=list)

    def identify(self, name: str, node: ast.AST) -> None:
        """Note where a name stands; its first place counts."""
        place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        known = self.identifiers.get(name)
        if known is None or place < (getattr(known, "lineno", 0), getattr(known, "col_offset", 0)):
            self.identifiers[name] = node

    @property
    def runs(self) -> bool:
        """Whether it does anything by itself: a module of definitions alone has no answer."""
        return any(
            isinstance(node, ast.Expr | ast.For | ast.While | ast.If | ast.With)
            and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            for node in self.tree.body
        )


_Item: TypeAlias = tuple[ast.AST, Scope, bool]
_HIGHER_ORDER: Final = frozenset({"map", "filter", "reduce", "partial", "accumulate", "starmap"})


def read(tree: ast.Module) -> Program:
    """Collect everything the checks need, in time linear in the number of nodes."""
    module = Scope("module", "", None, tree)
    program = Program(tree, module)
    program.scopes.append(module)
    stack: list[_Item] = [(tree, module, False)]
    while stack:
        node, scope, in_try = stack.pop()
        if not isinstance(node, ast.expr):
            for name in _BODIES:
                body = getattr(node, name, None)
                if isinstance(body, list) and body:
                    program.bodies.append(body)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            _function(program, node, scope, stack)
        elif isinstance(node, ast.ClassDef):
            _class(program, node, scope, stack)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            _comprehension(program, node, scope, stack)
        else:
            _other(program, node, scope, in_try)
            in_try = in_try or isinstance(node, ast.Try)
            stack.extend([(child, scope, in_try) for child in children(node)])
    for copy, name in program.copies:
        if name in program.aliases:  # m = math; m.addition
            program.aliases.setdefault(copy, program.aliases[name])
    return program


def _function(program: Program, node: Function, scope: Scope, stack: list[_Item]) -> None:
    """Decorators, defaults and annotations run outside, the body inside."""
    name = getattr(node, "name", "")
    if name:
        scope.bind(name, node.lineno)
        program.identify(name, node)
    inner = Scope("function" if name else "expression", name, scope, node)
    program.scopes.append(inner)
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a]
    outside: list[ast.AST | None] = [*arguments.defaults, *arguments.kw_defaults]
    for argument in every:
        inner.bind(argument.arg, node.lineno)
        program.identify(argument.arg, argument)
        outside.append(argument.annotation)
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    outside += [*decorators, getattr(node, "returns", None)]
    program.called.update(id(base_of(decorator)) for decorator in decorators)
    stack.extend((part, scope, False) for part in outside if part is not None)
    body = node.body if isinstance(node.body, list) else [node.body]
    # The first name that a function declares global must be known before its body is read.
    for statement in body:
        if isinstance(statement, ast.Global):
            inner.outer.update(statement.names)
    stack.extend((part, inner, False) for part in body)


def _class(program: Program, node: ast.ClassDef, scope: Scope, stack: list[_Item]) -> None:
    scope.bind(node.name, node.lineno)
    program.identify(node.name, node)
    program.classes.append(node)
    inner = Scope("class", node.name, scope, node)
    program.scopes.append(inner)
    outside: list[ast.AST] = [*node.bases, *node.decorator_list, *node.keywords]
    program.called.update(id(base_of(part)) for part in [*node.bases, *node.decorator_list])
    stack.extend((part, scope, False) for part in outside)
    stack.extend((part, inner, False) for part in node.body)


def _comprehension(program: Program, node: Comprehension, scope: Scope, stack: list[_Item]) -> None:
    """The first iterable runs outside: ``[eval for eval in [eval]]`` must show the builtin."""
    inner = Scope("expression", "", scope, node)
    program.scopes.append(inner)
    for index, generator in enumerate(node.generators):
        stack.append((generator.iter, inner if index else scope, False))
        stack.extend((part, inner, False) for part in (generator.target, *generator.ifs))
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    stack.extend((part, inner, False) for part in parts)


def _other(program: Program, node: ast.AST, scope: Scope, in_try: bool) -> None:
    if isinstance(node, ast.Name):
        _name(program, node, scope)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str | bytes):
            program.texts.append(node)
        elif isinstance(node.value, int) and abs(node.value) > 1 << 64:
            program.integers.append(node)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
        targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        program.copies += [(target, node.value.id) for target in targets]
    elif isinstance(node, ast.NamedExpr):
        outside = scope  # a walrus binds outside its comprehension, the loop's variable does not
        while outside.kind == "expression" and outside.parent is not None:
            outside = outside.parent
        outside.bind(node.target.id, node.lineno)
    elif isinstance(node, ast.Attribute):
        program.attributes.append((node, scope))
    elif isinstance(node, ast.Call):
        program.calls.append((node, scope))
        base = base_of(node.func)
        program.called.add(id(base))
        if isinstance(base, ast.Name) and base.id in _HIGHER_ORDER and node.args:
            program.called.add(id(base_of(node.args[0])))
    elif isinstance(node, ast.BinOp):
        program.operations.append(node)
    elif isinstance(node, ast.Subscript):
        program.subscripts.append(node)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        program.sequences.append(node)
    elif isinstance(node, ast.While):
        program.loops.append((node, in_try))
    elif isinstance(node, ast.Import | ast.ImportFrom):
        program.imports.append((node, scope))
        _import(program, node, scope)
    elif isinstance(node, ast.Global | ast.Nonlocal):
        scope.outer.update(node.names if isinstance(node, ast.Global) else ())
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        scope.bind(node.name, node.lineno)
        program.identify(node.name, node)
    elif isinstance(node, ast.MatchMapping) and node.rest:
        scope.bind(node.rest, node.lineno)
        program.identify(node.rest, node)


def _name(program: Program, node: ast.Name, scope: Scope) -> None:
    program.identify(node.id, node)
    if isinstance(node.ctx, ast.Load):
        program.loads.append((node, scope))
    elif isinstance(node.ctx, ast.Del):
        program.deleted.add(node.id)
    else:
        scope.bind(node.id, node.lineno)
        program.stores.append((node, scope))


def _import(program: Program, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        scope.bind(name, node.lineno)
        program.identify(name, node)
        if isinstance(node, ast.Import):
            program.aliases[name] = alias.name if alias.asname else name
        elif node.module and not node.level:
            program.members[name] = (node.module, alias.name)


_LEAVES: Final = (ast.Name, ast.Constant)
_MARKS: Final = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below, without operators and contexts: `ast.iter_child_nodes`, but fast."""
    found: list[ast.AST] = []
    if isinstance(node, _LEAVES):
        return found
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, _MARKS):
            found.append(value)
    return found


def base_of(node: ast.AST) -> ast.AST:
    """The name that an attribute, call or subscript chain begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
