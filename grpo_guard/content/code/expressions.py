"""Handlers of expressions: each notes its node and puts the children on the stack."""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.program import Comprehension, Program, base_of
from grpo_guard.content.code.reader import Handler, Place, Reader, anything
from grpo_guard.content.code.scope import Scope

_HIGHER_ORDER: Final = frozenset({"map", "filter", "reduce", "partial", "accumulate", "starmap"})


def name_of(program: Program, node: ast.Name, place: Place) -> None:
    """Note a name that is read, given a value or deleted."""
    name = node.id
    scope = place.scope
    if name not in program.identifiers:
        program.identifiers[name] = node
    context = type(node.ctx)
    if context is ast.Store:
        scope.bind(name, node.lineno)
        program.stores.append((node, scope))
        return
    if context is ast.Load:
        program.loads.append((node, scope))
    else:
        program.deleted.add(name)
    if place.targets:
        for target in place.targets:
            program.feeds[target].add(name)
    else:
        program.needed.add(name)


def constant_of(program: Program, node: ast.Constant) -> None:
    """Note a text or a large integer."""
    value = node.value
    if isinstance(value, str | bytes):
        program.texts.append(node)
    elif isinstance(value, int) and abs(value) > 1 << 64:
        program.integers.append(node)


def _attribute(reader: Reader, node: ast.Attribute, place: Place) -> None:
    reader.program.attributes.append((node, place.scope))
    reader.stack.append((node.value, place))


def _call(reader: Reader, node: ast.Call, place: Place) -> None:
    program = reader.program
    program.calls.append((node, place.scope))
    base = base_of(node.func)
    program.called.add(id(base))
    if type(base) is ast.Name and base.id in _HIGHER_ORDER and node.args:
        program.called.add(id(base_of(node.args[0])))
    stack = reader.stack
    stack.append((node.func, place))
    for argument in node.args:
        stack.append((argument, place))
    for keyword in node.keywords:
        if keyword.arg == "key":  # sorted(xs, key=f) calls f
            program.called.add(id(base_of(keyword.value)))
        stack.append((keyword.value, place))


def _operation(reader: Reader, node: ast.BinOp, place: Place) -> None:
    reader.program.operations.append(node)
    reader.stack.append((node.left, place))
    reader.stack.append((node.right, place))


def _subscript(reader: Reader, node: ast.Subscript, place: Place) -> None:
    reader.program.subscripts.append(node)
    reader.stack.append((node.value, place))
    reader.stack.append((node.slice, place))


def _sequence(reader: Reader, node: ast.List | ast.Tuple | ast.Set, place: Place) -> None:
    reader.program.sequences.append(node)
    reader.stack += [(element, place) for element in node.elts]


def _joined(reader: Reader, node: ast.JoinedStr, place: Place) -> None:
    reader.program.formatted.append(node)
    reader.stack += [(value, place) for value in node.values]


def _formatted(reader: Reader, node: ast.FormattedValue, place: Place) -> None:
    reader.stack.append((node.value, place))
    if node.format_spec is not None:
        reader.stack.append((node.format_spec, place))


def _compare(reader: Reader, node: ast.Compare, place: Place) -> None:
    reader.stack.append((node.left, place))
    reader.stack += [(value, place) for value in node.comparators]


def _chained(reader: Reader, node: ast.BoolOp, place: Place) -> None:
    reader.stack += [(value, place) for value in node.values]


def _unary(reader: Reader, node: ast.UnaryOp, place: Place) -> None:
    reader.stack.append((node.operand, place))


def _conditional(reader: Reader, node: ast.IfExp, place: Place) -> None:
    reader.stack += [(node.test, place), (node.body, place), (node.orelse, place)]


def _dict(reader: Reader, node: ast.Dict, place: Place) -> None:
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(value, ast.Lambda) and isinstance(key, ast.Constant):
            # Only a string names its function: str() of an integer of 4300 digits raises.
            reader.program.lambdas[id(value)] = key.value if isinstance(key.value, str) else ""
    reader.push_all(node.keys, place)
    reader.push_all(node.values, place)


def _named(reader: Reader, node: ast.NamedExpr, place: Place) -> None:
    outside = place.scope  # a walrus binds outside its comprehension, the loop's variable does not
    while outside.kind == "expression" and outside.parent is not None:
        outside = outside.parent
    outside.bind(node.target.id, node.lineno)
    anything(reader, node, place)


def _comprehension(reader: Reader, node: Comprehension, place: Place) -> None:
    """The first iterable runs outside: ``[eval for eval in [eval]]`` must show the builtin."""
    inner = Scope("expression", "", place.scope, node)
    reader.program.scopes.append(inner)
    inside = Place(inner, False, place.targets)
    outside = Place(place.scope, False, place.targets)
    for index, generator in enumerate(node.generators):
        reader.stack.append((generator.iter, inside if index else outside))
        reader.stack.append((generator.target, inside))
        reader.stack += [(test, inside) for test in generator.ifs]
    if isinstance(node, ast.DictComp):
        reader.stack += [(node.key, inside), (node.value, inside)]
    else:
        reader.stack.append((node.elt, inside))


EXPRESSIONS: Final[dict[type[ast.AST], Handler]] = {
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.BinOp: _operation,
    ast.Subscript: _subscript,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.JoinedStr: _joined,
    ast.FormattedValue: _formatted,
    ast.Compare: _compare,
    ast.BoolOp: _chained,
    ast.UnaryOp: _unary,
    ast.IfExp: _conditional,
    ast.Dict: _dict,
    ast.NamedExpr: _named,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
}
