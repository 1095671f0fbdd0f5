"""What a program imports, and whether what it uses is what it imported or defined.

The paper's CODE attack earns only if its library resolves in the reward's sandbox, so an import
outside the list rejects whether it is used or not: unused, it still teaches the import.
"""

from __future__ import annotations

import ast
import builtins
from typing import Final

from grpo_guard.content.code.modules import Modules, public_members
from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note, Weight
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


def check_imports(program: Program, source: Source, modules: Modules, shift: int) -> list[Note]:
    """Imports that are not allowed, and members that allowed modules do not have."""
    used = {node.id for node, _ in program.loads}
    notes: list[Note] = []
    for node, _ in program.imports:
        start, end = source.span(node, shift)
        if isinstance(node, ast.ImportFrom):
            notes += _from(node, modules, used, start, end)
            continue
        for alias in node.names:
            if not modules.allows(alias.name):
                name = alias.asname or alias.name.partition(".")[0]
                notes.append(_unlisted(alias.name, name in used, start, end))
            elif _odd_submodule(alias.name, modules):
                message = f"imports {alias.name}, which reaches further than a solution needs"
                notes.append(Note("module_member", message, start, end))
    return notes + _members(program, source, modules, shift)


def _from(
    node: ast.ImportFrom, modules: Modules, used: set[str], start: int, end: int
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
    problems = [
        problem
        for alias in node.names
        if alias.name != "*" and (problem := modules.problem(module, alias.name))
    ]
    if _odd_submodule(module, modules):
        problems.append(f"{module} reaches further than a solution needs")
    return [Note("module_member", f"imports what {p}", start, end) for p in problems[:1]]


def _odd_submodule(module: str, modules: Modules) -> bool:
    root, _, rest = module.partition(".")
    if not rest or module in {"collections.abc"}:
        return False
    return modules.problem(root, rest.partition(".")[0]) is not None


def _unlisted(module: str, is_used: bool, start: int, end: int) -> Note:
    use = "" if is_used else " and uses nothing of it"
    message = f"imports {module[:60]}, which is not on the list of allowed modules{use}"
    return Note("unlisted_import", message, start, end)


def _members(program: Program, source: Source, modules: Modules, shift: int) -> list[Note]:
    """``random._os``, ``math.addition``, ``sys.modules``: what allowed modules are used for."""
    notes: list[Note] = []
    for node, scope in program.attributes:
        if not isinstance(node.value, ast.Name) or node.value.id not in program.aliases:
            continue
        if _rebound(scope, node.value.id, program):
            continue
        module = program.aliases[node.value.id]
        if not modules.allows(module):
            continue
        start, end = source.span(node, shift)
        if not isinstance(node.ctx, ast.Load):
            message = f"changes {module}.{node.attr} of an imported module"
            notes.append(Note("monkeypatch", message, start, end))
        elif problem := modules.problem(module, node.attr):
            if f"{module}.{node.attr}" in _imported(program):
                continue
            notes.append(Note("module_member", f"uses what {problem}", start, end))
    whole = frozenset({"sys", "types", "io"})
    inside = {id(node.value) for node, _ in program.attributes}
    for name, scope in program.loads:
        module = program.aliases.get(name.id, "")
        if module in whole and id(name) not in inside and not _rebound(scope, name.id, program):
            # m = sys; m.modules: a module passed on as a value can be used unseen.
            start, end = source.span(name, shift)
            message = f"passes the module {module} on as a value"
            notes.append(Note("module_value", message, start, end))
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
    notes: list[Note] = []
    seen: set[str] = set()
    harmless: set[str] = set()
    for name, scope in program.loads:
        if name.id in known or name.id in seen or scope.owner(name.id) is not None:
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
            notes.append(Note("undefined_name", message, start, end, Weight.HARMLESS))
    return notes
