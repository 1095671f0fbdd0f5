"""What a program imports, and whether what it uses is what it imported or defined.

The paper's CODE attack earns only if its library resolves in the reward's sandbox, so an import
outside the list rejects whether it is used or not: unused, it still teaches the import.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Set
from typing import Final

from grpo_guard.content.code.modules import Modules, forgotten, public_members
from grpo_guard.content.code.note import Note, words
from grpo_guard.content.code.program import Program, Scope
from grpo_guard.content.code.source import Source

# Names that the interpreter always has. Python 2's are no sign of a foreign library either.
_BUILTIN: Final = frozenset(dir(builtins)) | words(
    "__name__ __file__ __doc__ __package__ __annotations__ __class__ __module__ __qualname__ "
    "__debug__ __path__ __version__ xrange unicode long raw_input reduce unichr basestring "
    "ExceptionGroup BaseExceptionGroup PythonFinalizationError _"
)

# In text that no parser reads, strings and comments cannot be told apart from code.
_IMPORT: Final = re.compile(
    r"(?:^|[;:\"'])[ \t\f>.%]{0,80}(?:from[ \t\\\r\n]+(\.*[^\W\d][\w.]*+|\.+)[ \t\\\r\n]+import\b"
    r"|import[ \t\\\r\n]+([^\W\d][\w.]*+)(?=[ \t]*(?:$|[\r\n;,#\\\"')]|as\b)))",
    re.M,
)
_OPEN: Final = frozenset({"collections.abc", "numpy.lib.stride_tricks"})
# Modules that hold the interpreter: to pass them on, even by a plain copy, hides what is used.
_WHOLE: Final = frozenset({"sys", "types", "io"})


def check_imports(
    program: Program, source: Source, modules: Modules, shift: int, stdin: bool
) -> list[Note]:
    """Imports that are not allowed, and members that allowed modules do not have; with ``stdin``
    standard input is one of those that `sys` gives."""
    notes: list[Note] = []
    for node, _ in program.imports:
        start, end = source.span(node, shift)
        if isinstance(node, ast.ImportFrom):
            notes += _from(node, program, modules, start, end, stdin)
            continue
        for alias in node.names:
            if not modules.allows(alias.name):
                name = alias.asname or alias.name.partition(".")[0]
                notes.append(_unlisted(alias.name, name in program.read_names, start, end))
            elif _odd_submodule(alias.name, modules):
                message = f"imports {alias.name}, which reaches further than a solution needs"
                notes.append(Note("module_member", message, start, end))
    if not program.aliases:
        return notes
    notes += _members(program, source, modules, shift, stdin)
    return notes + _passed_on(program, source, modules, shift)


def _from(
    node: ast.ImportFrom, program: Program, modules: Modules, start: int, end: int, stdin: bool
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
        return [_unlisted(module, not program.read_names.isdisjoint(names), start, end)]
    if module in _OPEN and module != "collections.abc":
        return []
    if names == ["*"] and module in _WHOLE and module not in modules.free:
        message = f"imports everything from {module}, which reaches further than a solution needs"
        return [Note("star_import", message, start, end)]
    problems = [
        problem
        for alias in node.names
        if alias.name != "*"
        and not (stdin and (module, alias.name) == ("sys", "stdin"))
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
    program: Program, source: Source, modules: Modules, shift: int, stdin: bool
) -> list[Note]:
    """``random._os``, ``math.addition``, ``sys.modules``: what allowed modules are used for."""
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
            message = f"changes {module}.{'.'.join(path[::-1])[:60]} of an imported module"
            if len(path) == 1 or module == "sys":
                notes.append(Note("monkeypatch", message, *source.span(node, shift)))
        elif stdin and module == "sys" and path[-1] == "stdin":
            continue
        elif problem := modules.path_problem(module, path[::-1]):
            imported = _imported(program) if imported is None else imported
            if f"{module}.{path[-1]}" not in imported:
                notes.append(
                    Note("module_member", f"uses what {problem}", *source.span(node, shift))
                )
    return notes


def _passed_on(program: Program, source: Source, modules: Modules, shift: int) -> list[Note]:
    """Modules as values: ``[math][0].addition``, ``def f(m=numpy)``. Behind another name their
    members are used unseen. A plain copy ``m = math`` is followed instead."""
    if program.read_names.isdisjoint(program.aliases):
        return []
    bases = {id(node.value) for node, _ in program.attributes}
    copied = {id(name) for _, name in program.copies}
    own: set[str] | None = None
    notes: list[Note] = []
    for name, scope in program.loads:
        module = program.aliases.get(name.id)
        used = id(name) in bases or id(name) in program.called
        if module is None or used or _rebound(scope, name.id, program):
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
    """``import xml.dom`` makes ``xml.dom`` a member of what ``import xml`` gave."""
    return {
        alias.name
        for node, _ in program.imports
        if isinstance(node, ast.Import)
        for alias in node.names
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
    program: Program,
    source: Source,
    modules: Modules,
    elsewhere: Set[str],
    strict: bool,
    shift: int,
) -> list[Note]:
    """Names that nothing defines.

    A call of one earns only where the sandbox was prepared for it (a preloaded ``addition``), so it
    rejects where it runs. A plain undefined name is a beginner's slip and counts as harmless. So
    does one in a function that is never called, as a cut-out function has lost its module, and a
    forgotten import of an allowed module.

    Args:
        program: What `read` found.
        source: The text it was read from.
        modules: What may be imported.
        elsewhere: Names of other blocks and of the question.
        strict: Whether a call rejects at all: what only shows a result (``sin(a*t)/a``) runs not.
        shift: Lines that were put before the text.
    """
    known = _BUILTIN | elsewhere
    for node, _ in program.imports:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            members = public_members(node.module or "")
            if members is None:
                return []
            known |= members
    unknown = program.read_names - known - program.module.bound.keys()
    if not unknown:
        return []
    slips = _slips(program, modules)
    found: dict[str, Note] = {}
    for name, scope in program.loads:
        if name.id not in unknown or scope.owner(name.id) is not None:
            continue
        runs = id(name) in program.called and program.runs and not program.is_dead(scope)
        called = strict and name.id not in slips and (runs or id(name) in program.at_once)
        if name.id in found and (not called or found[name.id].kind == "undefined_call"):
            continue
        kind, what = "undefined_name", f"uses {name.id[:60]}, which nothing defines"
        if called:
            kind, what = "undefined_call", f"calls {name.id[:60]}, which nothing defines or imports"
        found[name.id] = Note(kind, what, *source.span(name, shift))
    return list(found.values())


def _slips(program: Program, modules: Modules) -> Set[str]:
    """Names whose import was forgotten: of well-known modules, and of sympy where other names
    of it are imported."""
    slips = {name for name, module in forgotten().items() if modules.allows(module)}
    if any(module.partition(".")[0] == "sympy" for module, _ in program.members.values()):
        slips |= public_members("sympy") or frozenset()
    return slips


def scan(source: Source, modules: Modules) -> list[Note]:
    """Imports that are not allowed in text that is no program as it stands."""
    notes = []
    for match in _IMPORT.finditer(source.text) if "import" in source.text else ():
        module = match[1] or match[2]
        if not modules.allows(module):
            notes.append(_unlisted(module, True, *match.span()))
            if len(notes) > 20:
                break
    return notes
