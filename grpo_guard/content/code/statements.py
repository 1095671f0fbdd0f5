"""Handlers of statements and functions: what binds a name, and where the bodies are."""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.program import Function, Program, base_of
from grpo_guard.content.code.reader import Handler, Place, Reader, anything, body_of
from grpo_guard.content.code.scope import Scope

# What the value of a name can be read from.
_LITERALS: Final = (ast.Constant, ast.BinOp, ast.Call, ast.Subscript, ast.JoinedStr)


def _expression(reader: Reader, node: ast.Expr, place: Place) -> None:
    reader.stack.append((node.value, place))


def _return(reader: Reader, node: ast.Return, place: Place) -> None:
    if node.value is not None:
        reader.stack.append((node.value, place))


def _if(reader: Reader, node: ast.If, place: Place) -> None:
    body_of(reader, node.orelse, place)
    body_of(reader, node.body, place)
    reader.stack.append((node.test, place))


def _assign(reader: Reader, node: ast.Assign, place: Place) -> None:
    _assigned(reader, node.targets, node.value, place)


def _annotated(reader: Reader, node: ast.AnnAssign, place: Place) -> None:
    reader.stack.append((node.annotation, place))
    _assigned(reader, [node.target], node.value, place)


def _augmented(reader: Reader, node: ast.AugAssign, place: Place) -> None:
    _assigned(reader, [node.target], node.value, place, literal=False)


def _assigned(
    reader: Reader,
    targets: list[ast.expr],
    value: ast.expr | None,
    place: Place,
    literal: bool = True,
) -> None:
    program = reader.program
    names = tuple(target.id for target in targets if type(target) is ast.Name)
    reader.stack += [(target, place) for target in targets]
    if value is None:
        return
    if len(names) == len(targets):
        fed = _shared(program, names, value)
        reader.stack.append((value, Place(place.scope, place.in_try, fed)))
    else:
        reader.stack.append((value, place))
    if not literal:
        return
    kind = type(value)
    if kind is ast.Name:
        program.copies += [(name, value) for name in names]  # type: ignore[misc]
        return
    if kind in _LITERALS:
        program.literals += [(name, value) for name in names]
    if names:
        _named_lambda(program, names[0], value)


def _shared(program: Program, names: tuple[str, ...], value: ast.expr) -> tuple[str, ...]:
    """What notes the names that ``value`` reads: the target, or for several one thing that they
    share, no name of any program. ``a = b = ... = [a, b, ...]`` once took a set per target with all
    the names in it, gigabytes for 20,000 characters."""
    if len(names) < 2:
        return names
    group = f"= {id(value)}"
    for name in names:
        program.feeds[name].add(group)
    return (group,)


def _named_lambda(program: Program, name: str, value: ast.expr) -> None:
    """``add = lambda a, b: a + b``, also inside ``staticmethod(...)``."""
    if isinstance(value, ast.Call) and len(value.args) == 1:
        value = value.args[0]
    if isinstance(value, ast.Lambda):
        program.lambdas[id(value)] = name


def _loop(reader: Reader, node: ast.While | ast.For, place: Place) -> None:
    reader.program.loops.append((node, place.in_try))
    anything(reader, node, place)


def _try(reader: Reader, node: ast.Try | ast.TryStar, place: Place) -> None:
    anything(reader, node, Place(place.scope, True))


def _with(reader: Reader, node: ast.With, place: Place) -> None:
    """``with suppress(StopIteration)`` ends a loop as a ``try`` does."""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    names = {getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls}
    anything(reader, node, Place(place.scope, place.in_try or "suppress" in names))


def _imports(reader: Reader, node: ast.Import | ast.ImportFrom, place: Place) -> None:
    program = reader.program
    program.imports.append((node, place.scope))
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        reader.bind(name, node, place.scope)
        if isinstance(node, ast.Import):
            program.aliases[name] = alias.name if alias.asname else name
        elif node.module and not node.level:
            program.members[name] = (node.module, alias.name)


def _global(reader: Reader, node: ast.Global, place: Place) -> None:
    place.scope.outer.update(node.names)


def _capture(
    reader: Reader, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar, place: Place
) -> None:
    if node.name:
        reader.bind(node.name, node, place.scope)
    anything(reader, node, place)


def _mapping(reader: Reader, node: ast.MatchMapping, place: Place) -> None:
    if node.rest:
        reader.bind(node.rest, node, place.scope)
    anything(reader, node, place)


def _pattern(reader: Reader, node: ast.MatchClass, place: Place) -> None:
    reader.program.patterns.append(node)
    anything(reader, node, place)


def _function(reader: Reader, node: Function, place: Place) -> None:
    """Decorators, defaults and annotations run outside, the body inside."""
    program, scope = reader.program, place.scope
    name: str = getattr(node, "name", "")
    if name:
        reader.bind(name, node, scope)
    inner = Scope("function" if name else "expression", name, scope, node)
    program.scopes.append(inner)
    arguments = node.args
    outside = Place(scope, False, place.targets)
    reader.push_all(arguments.defaults, outside)
    reader.push_all(arguments.kw_defaults, outside)
    for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
        for argument in group:
            reader.bind(argument.arg, argument, inner)
            reader.push(argument.annotation, outside)
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            reader.bind(extra.arg, extra, inner)
            reader.push(extra.annotation, outside)
    inside = Place(inner, False, place.targets)
    if isinstance(node, ast.Lambda):
        reader.stack.append((node.body, inside))
        return
    for decorator in node.decorator_list:
        program.called.add(id(base_of(decorator)))
        reader.stack.append((decorator, outside))
    reader.push(node.returns, outside)
    # The first name that a function declares global must be known before its body is read.
    for statement in node.body:
        if isinstance(statement, ast.Global):
            inner.outer.update(statement.names)
    body_of(reader, node.body, inside)


def _class(reader: Reader, node: ast.ClassDef, place: Place) -> None:
    program, scope = reader.program, place.scope
    reader.bind(node.name, node, scope)
    program.classes.append(node)
    inner = Scope("class", node.name, scope, node)
    program.scopes.append(inner)
    outside = Place(scope)
    for part in (*node.bases, *node.decorator_list):
        program.called.add(id(base_of(part)))
        reader.stack.append((part, outside))
    for keyword in node.keywords:
        reader.stack.append((keyword.value, outside))
    body_of(reader, node.body, Place(inner))


STATEMENTS: Final[dict[type[ast.AST], Handler]] = {
    ast.Expr: _expression,
    ast.Return: _return,
    ast.If: _if,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
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
    ast.MatchMapping: _mapping,
    ast.MatchClass: _pattern,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.Lambda: _function,
    ast.ClassDef: _class,
}
