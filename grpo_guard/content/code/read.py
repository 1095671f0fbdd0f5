"""The single pass over a syntax tree that fills a `Program`.

The pass keeps its own stack, so that no depth of nesting causes a RecursionError, and the checks
use the program's lists instead of walking the tree again. Node types that record or bind something
have a handler; for all others, only the children are visited. A `View` is a program that was read,
plus everything the checks need.
"""

import ast
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.program import Comprehension, Function, Program, Scope, base_of
from grpo_guard.content.code.source import Note, Parsed, Source

_HIGHER_ORDER: Final = frozenset({"map", "filter", "reduce", "partial", "accumulate", "starmap"})
# Expressions that give a name a statically readable value.
_LITERALS: Final = (ast.Constant, ast.BinOp, ast.Call, ast.Subscript, ast.JoinedStr)
_MARKS: Final = (ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_QUIET: Final = frozenset(mark for kind in _MARKS for mark in kind.__subclasses__())


class _Reader:
    """The program read so far, plus the nodes still to be read; like `ast.NodeVisitor`."""

    __slots__ = ("program", "stack")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stack: list[tuple[ast.AST, Scope]] = []

    def push(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        self.stack += [(node, scope) for node in nodes if node is not None]

    def bind(self, name: str, node: Any, scope: Scope) -> None:
        scope.bind(name, node.lineno)
        self.program.identifiers.setdefault(name, node)

    def body(self, body: list[ast.stmt], scope: Scope) -> None:
        # Reversed, so that statements come off the stack in order, with first positions first.
        self.stack += [(statement, scope) for statement in reversed(body)]

    def children(self, node: ast.AST, scope: Scope) -> None:
        """Push the children of a node."""
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    self.body(value, scope)
                else:
                    self.push((v for v in value if isinstance(v, ast.AST)), scope)
            elif isinstance(value, ast.AST) and type(value) not in _QUIET:
                self.stack.append((value, scope))

    def visit_Name(self, node: ast.Name, scope: Scope) -> None:
        program, name = self.program, node.id
        program.identifiers.setdefault(name, node)
        context = type(node.ctx)
        if context is ast.Store:
            scope.bind(name, node.lineno)
            program.stores.append((node, scope))
        elif context is ast.Load:
            program.loads.append((node, scope))
        else:
            program.deleted.add(name)

    def visit_Constant(self, node: ast.Constant, scope: Scope) -> None:
        value = node.value
        if isinstance(value, str | bytes):
            self.program.texts.append(node)

    def visit_Attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.program.attributes.append((node, scope))
        self.stack.append((node.value, scope))

    def visit_Call(self, node: ast.Call, scope: Scope) -> None:
        program = self.program
        program.calls.append((node, scope))
        base = base_of(node.func)
        program.called.add(id(base))
        if type(base) is ast.Name and base.id in _HIGHER_ORDER and node.args:
            program.called.add(id(base_of(node.args[0])))
        self.stack.append((node.func, scope))
        self.push(node.args, scope)
        for keyword in node.keywords:
            if keyword.arg == "key":  # sorted(xs, key=f) calls f
                program.called.add(id(base_of(keyword.value)))
            self.stack.append((keyword.value, scope))

    def visit_BinOp(self, node: ast.BinOp, scope: Scope) -> None:
        self.program.operations.append(node)
        self.push((node.left, node.right), scope)

    def visit_Dict(self, node: ast.Dict, scope: Scope) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(value, ast.Lambda) and isinstance(key, ast.Constant):
                # Only a string names its function; str() of a 5000-digit integer would raise.
                self.program.lambdas[id(value)] = key.value if isinstance(key.value, str) else ""
        self.children(node, scope)

    def visit_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> None:
        outside = scope  # a walrus binds outside its comprehension, unlike the loop variable
        while outside.kind == "expression" and outside.parent is not None:
            outside = outside.parent
        outside.bind(node.target.id, node.lineno)
        self.children(node, scope)

    def visit_ListComp(self, node: Comprehension, scope: Scope) -> None:
        """Read a comprehension. Its first iterable runs outside the comprehension's own scope.

        In ``[eval for eval in [eval]]``, the last ``eval`` must be recognised as the builtin.
        """
        inner = Scope("expression", "", scope, node)
        self.program.scopes.append(inner)
        for index, generator in enumerate(node.generators):
            self.stack.append((generator.iter, inner if index else scope))
            self.push((generator.target, *generator.ifs), inner)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self.push(parts, inner)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign, scope: Scope) -> None:
        program, value = self.program, node.value
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node, ast.AnnAssign):
            self.stack.append((node.annotation, scope))
        self.push((*targets, value), scope)
        names = [target.id for target in targets if type(target) is ast.Name]
        if value is None or not names:
            return
        if isinstance(value, ast.Name):
            program.copies += [(name, value) for name in names]
        elif isinstance(value, _LITERALS):
            program.literals += [(name, value) for name in names]
        elif isinstance(value, ast.Attribute):
            program.references += [(name, value) for name in names]
        # add = lambda a, b: a + b, including inside staticmethod(...)
        inner = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
        if isinstance(inner, ast.Lambda):
            program.lambdas[id(inner)] = names[0]

    visit_AnnAssign = visit_Assign

    def visit_While(self, node: ast.While | ast.For, scope: Scope) -> None:
        self.program.loops.append(node)
        self.children(node, scope)

    visit_For = visit_While

    def visit_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        program = self.program
        program.imports.append((node, scope))
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.bind(name, node, scope)
            if isinstance(node, ast.Import):
                program.aliases[name] = alias.name if alias.asname else name
            elif node.module and not node.level:
                program.members[name] = (node.module, alias.name)

    visit_ImportFrom = visit_Import

    def visit_Global(self, node: ast.Global, scope: Scope) -> None:
        scope.outer.update(node.names)

    def visit_ExceptHandler(
        self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: Scope
    ) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.bind(name, node, scope)
            # A captured name has no literal value, and might not be bound at all.
            self.program.deleted.add(name)
        self.children(node, scope)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler

    def visit_FunctionDef(self, node: Function, scope: Scope) -> None:
        """Read a function: decorators, defaults and annotations run outside, the body inside."""
        program = self.program
        name: str = getattr(node, "name", "")
        if name:
            self.bind(name, node, scope)
        inner = Scope("function" if name else "expression", name, scope, node)
        program.scopes.append(inner)
        arguments = node.args
        self.push((*arguments.defaults, *arguments.kw_defaults), scope)
        listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for argument in (*listed, arguments.vararg, arguments.kwarg):
            if argument is not None:
                self.bind(argument.arg, argument, inner)
                self.push([argument.annotation], scope)
        if isinstance(node, ast.Lambda):
            self.stack.append((node.body, inner))
            return
        self.made_of(node.decorator_list, scope)
        self.push([node.returns], scope)
        # Names that a function declares global must be known before its body is read.
        for statement in node.body:
            if isinstance(statement, ast.Global):
                inner.outer.update(statement.names)
        self.body(node.body, inner)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        program = self.program
        self.bind(node.name, node, scope)
        inner = Scope("class", node.name, scope, node)
        program.scopes.append(inner)
        self.made_of([*node.bases, *node.decorator_list], scope)
        self.push((keyword.value for keyword in node.keywords), scope)
        self.body(node.body, inner)

    def made_of(self, nodes: list[ast.expr], scope: Scope) -> None:
        for node in nodes:
            self.program.called.add(id(base_of(node)))
        self.push(nodes, scope)


def read(tree: ast.Module) -> Program:
    """Collect everything the checks need from the tree, in time linear in its number of nodes."""
    module = Scope("module", "", None, tree)
    program = Program(tree, module)
    program.scopes.append(module)
    reader = _Reader(program)
    reader.body(tree.body, module)
    stack = reader.stack
    while stack:
        node, scope = stack.pop()
        visit = getattr(reader, f"visit_{type(node).__name__}", reader.children)
        visit(node, scope)
    for copy, name in program.copies:
        if name.id in program.aliases:  # m = math; m.addition
            program.aliases.setdefault(copy, program.aliases[name.id])
    return program


@dataclass(frozen=True, slots=True)
class View:
    """The input of a check.

    Args:
        program: The program, as returned by `read`.
        source: The text from which the program was read.
        shift: Number of lines prepended to the text to make it parse.
        modules: The modules that can be imported.
        asked: The question, in lower case.
        names: Names defined by other blocks and by the question.
        theirs: Subset of ``names`` that other blocks define rather than import.
        defined: Functions and classes defined by the question.
        strict: Whether the block is more than a program's output (``sin(a*t)/a``).
    """

    program: Program
    source: Source
    shift: int
    modules: Modules
    asked: str
    names: Set[str]
    theirs: Set[str]
    defined: Set[str]
    strict: bool

    def note(self, kind: str, node: ast.AST, message: str) -> Note:
        """Make a note about a node."""
        return Note(kind, message, *self.source.span(node, self.shift))

    def inside(self, parsed: Parsed, source: Source) -> "View | None":
        """Return the view of a program that this one runs from a string, or None if unparsable."""
        if parsed.tree is None:
            return None
        inner = read(parsed.tree)
        inner.module.bound.update(self.program.module.bound)
        return replace(self, program=inner, source=source, shift=parsed.shift)
