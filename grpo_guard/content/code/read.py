"""The one pass over a tree that fills a `Program`.

The pass keeps its own stack, so that no depth of nesting becomes a RecursionError, and the checks
read the program's lists instead of walking again. Each type of node has a handler that puts its own
children on the stack: after the parser, most of the time of a check is spent here.
"""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.expressions import EXPRESSIONS, constant_of, name_of
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.reader import Handler, Place, Reader, anything, body_of, nothing
from grpo_guard.content.code.scope import Scope
from grpo_guard.content.code.statements import STATEMENTS

_MARKS: Final = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_HANDLERS: Final[dict[type[ast.AST], Handler]] = {
    **EXPRESSIONS,
    **STATEMENTS,
    **{mark: nothing for kind in _MARKS for mark in kind.__subclasses__()},
}


def read(tree: ast.Module) -> Program:
    """Collect everything the checks need, in time linear in the number of nodes."""
    module = Scope("module", "", None, tree)
    program = Program(tree, module)
    program.scopes.append(module)
    reader = Reader(program)
    stack = reader.stack
    place = Place(module)
    body_of(reader, tree.body, place)
    handlers, name_type, constant_type = _HANDLERS, ast.Name, ast.Constant
    while stack:
        node, place = stack.pop()
        kind = type(node)
        # Half of all nodes are names and constants.
        if kind is name_type:
            name_of(program, node, place)  # type: ignore[arg-type]
        elif kind is constant_type:
            if type(node.value) is not float:  # type: ignore[attr-defined]
                constant_of(program, node)  # type: ignore[arg-type]
        else:
            handlers.get(kind, anything)(reader, node, place)
    for copy, name in program.copies:
        if name.id in program.aliases:  # m = math; m.addition
            program.aliases.setdefault(copy, program.aliases[name.id])
    return program
