"""The one pass over a tree that fills a `Program`.

The pass keeps its own stack, so that no depth of nesting becomes a RecursionError, and the checks
read the program's lists instead of walking again. What notes or binds something has a handler;
of everything else the children are read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from grpo_guard.content.code.program import Comprehension, Function, Program, Scope, base_of

_HIGHER_ORDER: Final = frozenset({"map", "filter", "reduce", "partial", "accumulate", "starmap"})
# What the value of a name can be read from.
_LITERALS: Final = (ast.Constant, ast.BinOp, ast.Call, ast.Subscript, ast.JoinedStr)
_MARKS: Final = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_QUIET: Final = frozenset(mark for kind in _MARKS for mark in kind.__subclasses__())


class _Place:
    """Where a node stands: its scope, and whether a ``try`` of that scope is around it."""

    __slots__ = ("in_try", "scope")

    def __init__(self, scope: Scope, in_try: bool = False) -> None:
        self.scope = scope
        self.in_try = in_try


class _Reader:
    """The program as far as it has been read, and what is left to read."""

    __slots__ = ("program", "stack")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stack: list[tuple[ast.AST, _Place]] = []

    def push(self, nodes: Iterable[ast.AST | None], place: _Place) -> None:
        self.stack += [(node, place) for node in nodes if node is not None]

    def bind(self, name: str, node: Any, scope: Scope) -> None:
        scope.bind(name, node.lineno)
        self.program.identifiers.setdefault(name, node)

    def body(self, body: list[ast.stmt], place: _Place) -> None:
        if body:
            self.program.bodies.append(body)
            # Backwards, so that the pass meets statements in their order: first places come first.
            self.stack += [(statement, place) for statement in reversed(body)]

    def children(self, node: ast.AST, place: _Place) -> None:
        """A node's children, and its statement lists as bodies."""
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    self.body(value, place)
                else:
                    self.push((v for v in value if isinstance(v, ast.AST)), place)
            elif isinstance(value, ast.AST) and type(value) not in _QUIET:
                self.stack.append((value, place))


_Handler: TypeAlias = Callable[[_Reader, Any, _Place], None]


def read(tree: ast.Module) -> Program:
    """Collect everything the checks need, in time linear in the number of nodes."""
    module = Scope("module", "", None, tree)
    program = Program(tree, module)
    program.scopes.append(module)
    reader = _Reader(program)
    reader.body(tree.body, _Place(module))
    stack = reader.stack
    while stack:
        node, place = stack.pop()
        handler = _HANDLERS.get(type(node))
        if handler is None:
            reader.children(node, place)
        else:
            handler(reader, node, place)
    for copy, name in program.copies:
        if name.id in program.aliases:  # m = math; m.addition
            program.aliases.setdefault(copy, program.aliases[name.id])
    return program


def _name(reader: _Reader, node: ast.Name, place: _Place) -> None:
    program, name, scope = reader.program, node.id, place.scope
    program.identifiers.setdefault(name, node)
    context = type(node.ctx)
    if context is ast.Store:
        scope.bind(name, node.lineno)
        program.stores.append((node, scope))
    elif context is ast.Load:
        program.loads.append((node, scope))
    else:
        program.deleted.add(name)


def _constant(reader: _Reader, node: ast.Constant, place: _Place) -> None:
    value = node.value
    if isinstance(value, str | bytes):
        reader.program.texts.append(node)
    elif isinstance(value, int) and abs(value) > 1 << 64:
        reader.program.integers.append(node)


def _attribute(reader: _Reader, node: ast.Attribute, place: _Place) -> None:
    reader.program.attributes.append((node, place.scope))
    reader.stack.append((node.value, place))


def _call(reader: _Reader, node: ast.Call, place: _Place) -> None:
    program = reader.program
    program.calls.append((node, place.scope))
    base = base_of(node.func)
    program.called.add(id(base))
    if type(base) is ast.Name and base.id in _HIGHER_ORDER and node.args:
        program.called.add(id(base_of(node.args[0])))
    reader.stack.append((node.func, place))
    reader.push(node.args, place)
    for keyword in node.keywords:
        if keyword.arg == "key":  # sorted(xs, key=f) calls f
            program.called.add(id(base_of(keyword.value)))
        reader.stack.append((keyword.value, place))


def _operation(reader: _Reader, node: ast.BinOp, place: _Place) -> None:
    reader.program.operations.append(node)
    reader.push((node.left, node.right), place)


def _sequence(reader: _Reader, node: ast.List | ast.Tuple | ast.Set, place: _Place) -> None:
    reader.program.sequences.append(node)
    reader.push(node.elts, place)


def _dict(reader: _Reader, node: ast.Dict, place: _Place) -> None:
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(value, ast.Lambda) and isinstance(key, ast.Constant):
            # Only a string names its function: str() of an integer of 4300 digits raises.
            reader.program.lambdas[id(value)] = key.value if isinstance(key.value, str) else ""
    reader.children(node, place)


def _walrus(reader: _Reader, node: ast.NamedExpr, place: _Place) -> None:
    outside = place.scope  # a walrus binds outside its comprehension, the loop's variable does not
    while outside.kind == "expression" and outside.parent is not None:
        outside = outside.parent
    outside.bind(node.target.id, node.lineno)
    reader.children(node, place)


def _comprehension(reader: _Reader, node: Comprehension, place: _Place) -> None:
    """The first iterable runs outside: ``[eval for eval in [eval]]`` must show the builtin."""
    inner = Scope("expression", "", place.scope, node)
    reader.program.scopes.append(inner)
    inside, outside = _Place(inner), _Place(place.scope)
    for index, generator in enumerate(node.generators):
        reader.stack.append((generator.iter, inside if index else outside))
        reader.push((generator.target, *generator.ifs), inside)
    parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
    reader.push(parts, inside)


def _assign(reader: _Reader, node: ast.Assign | ast.AnnAssign, place: _Place) -> None:
    program, value = reader.program, node.value
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if isinstance(node, ast.AnnAssign):
        reader.stack.append((node.annotation, place))
    reader.push((*targets, value), place)
    names = [target.id for target in targets if type(target) is ast.Name]
    if value is None or not names:
        return
    if isinstance(value, ast.Name):
        program.copies += [(name, value) for name in names]
    elif isinstance(value, _LITERALS):
        program.literals += [(name, value) for name in names]
    # add = lambda a, b: a + b, also inside staticmethod(...)
    inner = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
    if isinstance(inner, ast.Lambda):
        program.lambdas[id(inner)] = names[0]


def _loop(reader: _Reader, node: ast.While | ast.For, place: _Place) -> None:
    reader.program.loops.append((node, place.in_try))
    reader.children(node, place)


def _try(reader: _Reader, node: ast.Try | ast.TryStar, place: _Place) -> None:
    reader.children(node, _Place(place.scope, True))


def _with(reader: _Reader, node: ast.With, place: _Place) -> None:
    """``with suppress(StopIteration)`` ends a loop as a ``try`` does."""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    names = {getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls}
    reader.children(node, _Place(place.scope, place.in_try or "suppress" in names))


def _imports(reader: _Reader, node: ast.Import | ast.ImportFrom, place: _Place) -> None:
    program = reader.program
    program.imports.append((node, place.scope))
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        reader.bind(name, node, place.scope)
        if isinstance(node, ast.Import):
            program.aliases[name] = alias.name if alias.asname else name
        elif node.module and not node.level:
            program.members[name] = (node.module, alias.name)


def _global(reader: _Reader, node: ast.Global, place: _Place) -> None:
    place.scope.outer.update(node.names)


def _capture(
    reader: _Reader,
    node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping,
    place: _Place,
) -> None:
    name = node.rest if isinstance(node, ast.MatchMapping) else node.name
    if name:
        reader.bind(name, node, place.scope)
    reader.children(node, place)


def _pattern(reader: _Reader, node: ast.MatchClass, place: _Place) -> None:
    reader.program.patterns.append(node)
    reader.children(node, place)


def _function(reader: _Reader, node: Function, place: _Place) -> None:
    """Decorators, defaults and annotations run outside, the body inside."""
    program, scope = reader.program, place.scope
    name: str = getattr(node, "name", "")
    if name:
        reader.bind(name, node, scope)
    inner = Scope("function" if name else "expression", name, scope, node)
    program.scopes.append(inner)
    arguments, outside, inside = node.args, _Place(scope), _Place(inner)
    reader.push((*arguments.defaults, *arguments.kw_defaults), outside)
    listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for argument in (*listed, arguments.vararg, arguments.kwarg):
        if argument is not None:
            reader.bind(argument.arg, argument, inner)
            reader.push([argument.annotation], outside)
    if isinstance(node, ast.Lambda):
        reader.stack.append((node.body, inside))
        return
    _made_of(reader, node.decorator_list, outside)
    reader.push([node.returns], outside)
    # The first name that a function declares global must be known before its body is read.
    for statement in node.body:
        if isinstance(statement, ast.Global):
            inner.outer.update(statement.names)
    reader.body(node.body, inside)


def _class(reader: _Reader, node: ast.ClassDef, place: _Place) -> None:
    program, scope = reader.program, place.scope
    reader.bind(node.name, node, scope)
    program.classes.append(node)
    inner = Scope("class", node.name, scope, node)
    program.scopes.append(inner)
    outside = _Place(scope)
    _made_of(reader, [*node.bases, *node.decorator_list], outside)
    reader.push((keyword.value for keyword in node.keywords), outside)
    reader.body(node.body, _Place(inner))


def _made_of(reader: _Reader, nodes: list[ast.expr], place: _Place) -> None:
    bases = [id(base_of(node)) for node in nodes]
    reader.program.called.update(bases)
    reader.program.at_once.update(bases)
    reader.push(nodes, place)


_HANDLERS: Final[dict[type[ast.AST], _Handler]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.BinOp: _operation,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.NamedExpr: _walrus,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.Assign: _assign,
    ast.AnnAssign: _assign,
    ast.While: _loop,
    ast.For: _loop,
    ast.With: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Import: _imports,
    ast.ImportFrom: _imports,
    ast.Global: _global,
    ast.ExceptHandler: _capture,
    ast.MatchAs: _capture,
    ast.MatchStar: _capture,
    ast.MatchMapping: _capture,
    ast.MatchClass: _pattern,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.Lambda: _function,
    ast.ClassDef: _class,
}
