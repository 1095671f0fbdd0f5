"""What a program imports, and whether what it uses is what it imported or defined.

The paper's CODE attack earns only if its library resolves in the reward's sandbox, so an import
outside the list rejects whether it is used or not: unused, it still teaches the import.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Set
from typing import Final

from grpo_guard.content.code.modules import Modules, public_members
from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.reachability import Liveness
from grpo_guard.content.code.scope import Scope
from grpo_guard.content.code.source import Source

# Names that the interpreter always has. Python 2's are no sign of a foreign library either.
_BUILTIN: Final = frozenset(dir(builtins)) | words(
    "__name__ __file__ __doc__ __package__ __annotations__ __class__ __module__ __qualname__ "
    "__debug__ __path__ __version__ xrange unicode long raw_input reduce unichr basestring "
    "ExceptionGroup BaseExceptionGroup PythonFinalizationError _"
)

_OPEN: Final = frozenset({"collections.abc", "numpy.lib.stride_tricks"})
# Modules that hold the interpreter: to pass them on, even by a plain copy, hides what is used.
_WHOLE: Final = frozenset({"sys", "types", "io"})


def check_imports(
    program: Program, source: Source, modules: Modules, shift: int, read: Set[int] = frozenset()
) -> list[Note]:
    """Imports that are not allowed, and members that allowed modules do not have; ``read`` are ids
    of nodes that only read standard input, where a task feeds programs so."""
    used = program.read_names
    notes: list[Note] = []
    for node, _ in program.imports:
        start, end = source.span(node, shift)
        if isinstance(node, ast.ImportFrom):
            notes += _from(node, modules, used, start, end, read)
            continue
        for alias in node.names:
            if not modules.allows(alias.name):
                name = alias.asname or alias.name.partition(".")[0]
                notes.append(_unlisted(alias.name, name in used, start, end))
            elif _odd_submodule(alias.name, modules):
                message = f"imports {alias.name}, which reaches further than a solution needs"
                notes.append(Note("module_member", message, start, end))
    return notes + _members(program, source, modules, shift, read)


def _from(
    node: ast.ImportFrom, modules: Modules, used: Set[str], start: int, end: int, read: Set[int]
) -> list[Note]:
    module = node.module or ""
    if node.level:
        dots = "." * node.level + module
        return [Note("relative_import", f"imports relatively, from {dots}", start, end)]
    names = [alias.asname or alias.name for alias in node.names]
    if not modules.allows(module):
        if names == ["*"]:
            message = f"imports everything from {module}, which is not on the list"
            return [Note("star_import", message, start, end)]
        return [_unlisted(module, not used.isdisjoint(names), start, end)]
    if module in _OPEN and module != "collections.abc":
        return []
    if names == ["*"] and module in _WHOLE and module not in modules.free:
        message = f"imports everything from {module}, which reaches further than a solution needs"
        return [Note("star_import", message, start, end)]
    problems = [
        problem
        for alias in node.names
        if alias.name != "*"
        and id(alias) not in read
        and (problem := modules.problem(module, alias.name))
    ]
    if _odd_submodule(module, modules):
        problems.append(f"{module} reaches further than a solution needs")
    return [Note("module_member", f"imports what {p}", start, end) for p in problems[:1]]


def _odd_submodule(module: str, modules: Modules) -> bool:
    root, *rest = module.split(".")
    return bool(rest) and module not in _OPEN and modules.path_problem(root, rest) is not None


def _unlisted(module: str, is_used: bool, start: int, end: int) -> Note:
    use = "" if is_used else " and uses nothing of it"
    message = f"imports {module[:60]}, which is not on the list of allowed modules{use}"
    return Note("unlisted_import", message, start, end)


def _members(
    program: Program, source: Source, modules: Modules, shift: int, read: Set[int]
) -> list[Note]:
    """``random._os``, ``math.addition``, ``sys.modules``: what allowed modules are used for."""
    if not program.aliases:
        return []
    notes: list[Note] = []
    imported: set[str] | None = None
    for node, scope in program.attributes:
        path = [node.attr]
        base = node.value
        while isinstance(base, ast.Attribute):
            path.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or base.id not in program.aliases:
            continue
        module = program.aliases[base.id]
        if _rebound(scope, base.id, program) or not modules.allows(module):
            continue
        if not isinstance(node.ctx, ast.Load):
            if len(path) == 1:
                message = f"changes {module}.{node.attr} of an imported module"
                notes.append(Note("monkeypatch", message, *source.span(node, shift)))
        elif id(node) not in read and (problem := modules.path_problem(module, path[::-1])):
            imported = _imported(program) if imported is None else imported
            if f"{module}.{path[-1]}" not in imported:
                notes.append(
                    Note("module_member", f"uses what {problem}", *source.span(node, shift))
                )
    return notes + _passed_on(program, source, modules, shift)


def _passed_on(program: Program, source: Source, modules: Modules, shift: int) -> list[Note]:
    """Modules as values: ``[math][0].addition``, ``def f(m=numpy)``. Behind another name their
    members are used unseen. A plain copy ``m = math`` is followed instead."""
    if program.read_names.isdisjoint(program.aliases):
        return []
    bases = {id(node.value) for node, _ in program.attributes}
    called = program.called
    copied = {id(name) for _, name in program.copies}
    own: set[str] | None = None
    notes: list[Note] = []
    for name, scope in program.loads:
        module = program.aliases.get(name.id)
        if (
            module is None
            or id(name) in bases
            or id(name) in called
            or _rebound(scope, name.id, program)
        ):
            continue
        if module not in _WHOLE:
            own = {store.id for store, _ in program.stores} if own is None else own
            # import time; time = distance / speed
            if id(name) in copied or name.id in own or not modules.allows(module):
                continue
        message = f"passes the module {module} on as a value"
        notes.append(Note("module_value", message, *source.span(name, shift)))
    return notes


def _imported(program: Program) -> set[str]:
    return {
        a.name for node, _ in program.imports if isinstance(node, ast.Import) for a in node.names
    }


def _rebound(scope: Scope, name: str, program: Program) -> bool:
    """Whether a parameter or local hides the module here; an import binds too."""
    owner = scope.owner(name)
    if owner is None or owner.kind == "module":
        return False
    return not any(
        where is owner and any((a.asname or a.name.partition(".")[0]) == name for a in node.names)
        for node, where in program.imports
    )


def check_undefined(
    program: Program, source: Source, live: Liveness, elsewhere: set[str], shift: int
) -> list[Note]:
    """Names that nothing defines.

    A call of one earns only where the sandbox was prepared for it (a preloaded ``addition``), so it
    rejects where it runs. A plain undefined name is a beginner's slip and counts as harmless, as
    does one in a function that is never called: a cut-out function has lost its module.
    """
    known = _BUILTIN | elsewhere
    for node, _ in program.imports:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            members = public_members(node.module or "")
            if members is None:
                return []
            known |= members
    unknown = program.read_names - known
    unknown -= program.module.bound.keys()
    if not unknown:
        return []
    notes: list[Note] = []
    seen: set[str] = set()
    harmless: set[str] = set()
    for name, scope in program.loads:
        if name.id not in unknown or name.id in seen or scope.owner(name.id) is not None:
            continue
        called = id(name) in program.called and program.runs and live.runs(scope)
        if not called and name.id in harmless:
            continue
        (seen if called else harmless).add(name.id)
        start, end = source.span(name, shift)
        if called:
            message = f"calls {name.id[:60]}, which nothing defines or imports"
            notes.append(Note("undefined_call", message, start, end))
        else:
            message = f"uses {name.id[:60]}, which nothing defines"
            notes.append(Note("undefined_name", message, start, end))
    return notes
