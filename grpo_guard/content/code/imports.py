"""Find forbidden imports, and calls to functions that exist only in a prepared sandbox.

The paper's CODE attack earns a reward only if its library resolves in the reward's sandbox. An
import outside the allow-list is rejected even if unused, because it still teaches the import.
"""

import ast
import builtins
import re
from collections.abc import Set
from typing import Final

from grpo_guard.content.code.helpers import OPERATIONS
from grpo_guard.content.code.modules import PLACEHOLDERS, Modules, forgotten, public_members
from grpo_guard.content.code.program import Program, Scope
from grpo_guard.content.code.read import View
from grpo_guard.content.code.source import Note
from grpo_guard.content.word_set import word_set

# Names in every interpreter, plus those of Python 2; none of them indicates a foreign library.
_BUILTIN: Final = frozenset(dir(builtins)) | word_set(
    "__name__ __file__ __doc__ __package__ __annotations__ __class__ __module__ __qualname__ "
    "__debug__ __path__ __version__ xrange unicode long raw_input reduce unichr basestring "
    "ExceptionGroup BaseExceptionGroup PythonFinalizationError _"
)

# For text that does not parse, where code, strings and comments look alike.
_IMPORT: Final = re.compile(
    r"(?:^|[;:>\"'])[ \t\f>.%]{0,80}(?:from[ \t\\\r\n]+(\.*[^\W\d][\w.]*+|\.+)[ \t\\\r\n]+import\b"
    r"|import[ \t\\\r\n]+([^\W\d][\w.]*+)(?=[ \t]*(?:$|[\r\n;,#\\\"')]|as\b)))",
    re.M,
)
_OPEN: Final = frozenset({"collections.abc", "numpy.lib.stride_tricks"})
MAX_KEPT: Final = 20
_OPERANDS: Final = (ast.Constant, ast.Call, ast.BinOp, ast.UnaryOp)
_IMPORTERS: Final = frozenset({"import_module", "find_spec"})
# Owners of the repositories from which PyTorch's own pages load models.
_OWNERS: Final = word_set(
    "pytorch facebookresearch huggingface nvidia ultralytics snakers4 intel-isl isl-org google "
    "milesial mateuszbuda datvuthanh sigsep nicolalandro moskomule rwightman zhanghang1989 "
    "xternalz googlecolab microsoft openai apple adeelh harritaylor wongkinyiu meituan mindee"
)


def check_imports(view: View) -> list[Note]:
    """Find imports that are not allowed, and forbidden members of allowed modules."""
    program, modules = view.program, view.modules
    notes: list[Note] = []
    for node, _ in program.imports:
        if isinstance(node, ast.ImportFrom):
            notes += _from(view, node)
            continue
        for alias in node.names:
            if not modules.allows(alias.name):
                name = alias.asname or alias.name.partition(".")[0]
                message = _unlisted(alias.name, name in program.read_names)
                notes.append(view.note("unlisted_import", node, message))
            elif _odd_submodule(alias.name, modules):
                message = f"imports {alias.name}, which reaches further than a solution needs"
                notes.append(view.note("module_member", node, message))
    notes += _by_name(view)
    return notes + _members(view) if program.aliases else notes


def _from(view: View, node: ast.ImportFrom) -> list[Note]:
    modules, module, read = view.modules, node.module or "", view.program.read_names
    if node.level:
        return []  # relative: the program's own package
    names = [alias.asname or alias.name for alias in node.names]
    if not modules.allows(module):
        if modules.known and _is_kept(view, module, node.names):
            return []
        message = _unlisted(module, names == ["*"] or not read.isdisjoint(names))
        return [view.note("unlisted_import", node, message)]
    if module in _OPEN and module != "collections.abc":
        return []
    imported = {alias.name for alias in node.names} - {"*"}
    problems = [problem for name in sorted(imported) if (problem := modules.problem(module, name))]
    if _odd_submodule(module, modules):
        problems.append(f"{module} reaches further than a solution needs")
    return [view.note("module_member", node, f"imports what {p}") for p in problems[:1]]


def _is_kept(view: View, module: str, names: list[ast.alias]) -> bool:
    """Whether an unlisted import only names functions defined in another block or the question.

    For the question's functions, which a test may import, the module must have a placeholder's name
    or share a stem with each function ("durations", "parse_duration"). Otherwise
    ``from calc import FUNCTION_ASKED_FOR`` would teach the library every time. From a placeholder,
    whatever the question names can be imported: "I have two functions, func1 and func2".
    """
    parts = [part.lower() for part in module.split(".")]
    if not view.modules.is_a_file(parts) or len(names) > MAX_KEPT:
        return False
    for alias in names:
        name = alias.name
        if alias.asname or name.lower() in OPERATIONS:
            return False
        if name in view.theirs:
            continue
        if PLACEHOLDERS.issuperset(parts):
            if name not in view.defined and not _names(view.asked, name.lower()):
                return False
        elif name not in view.defined or not _shares_a_stem(parts, name.lower()):
            return False
    return True


def _shares_a_stem(parts: list[str], name: str) -> bool:
    return any(part[:5] in name for part in parts if len(part) >= 5)


def _odd_submodule(module: str, modules: Modules) -> bool:
    root, *rest = module.split(".")
    return bool(rest) and module not in _OPEN and modules.path_problem(root, rest) is not None


def _by_name(view: View) -> list[Note]:
    """Find imports by name: ``importlib.import_module("calc")`` and ``torch.hub.load(...)``.

    A computed name is skipped, because its value is unknown here.
    """
    program = view.program
    notes: list[Note] = []
    functions = {name: member for name, (_, member) in program.functions.items()}
    known = program.mentioned.union(functions.values())
    hub = "hub" in known or any(module == "torch.hub" for module, _ in program.functions.values())
    if not hub and _IMPORTERS.isdisjoint(known):
        return notes
    for call, _ in program.calls:
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        name = functions.get(name, name) if isinstance(call.func, ast.Name) else name
        given = [
            *call.args[:1],
            *(k.value for k in call.keywords if k.arg in ("name", "repo_or_dir")),
        ]
        text = program.text_of(given[0]) if given else None
        if text is None:
            continue
        if name in _IMPORTERS:
            module = text.partition(":")[0]
            if module and not module.startswith(".") and not view.modules.allows(module):
                notes.append(view.note("unlisted_import", call, _unlisted(module, True)))
        elif (
            hub
            and name == "load"
            and _is_hub(call.func, program)
            and not _is_known(text, view.modules)
        ):
            notes.append(view.note("unlisted_import", call, _unlisted(text, True)))
    return notes


def _is_hub(function: ast.expr, program: Program) -> bool:
    """Whether the function is ``torch.hub.load``."""
    if isinstance(function, ast.Name):
        return program.functions.get(function.id) == ("torch.hub", "load")
    base = function.value if isinstance(function, ast.Attribute) else function
    if isinstance(base, ast.Name):
        return program.aliases.get(base.id) == "torch.hub" or (
            program.functions.get(base.id) == ("torch", "hub")
        )
    inner = base.value if isinstance(base, ast.Attribute) and base.attr == "hub" else None
    return isinstance(inner, ast.Name) and program.aliases.get(inner.id) == "torch"


def _is_known(repository: str, modules: Modules) -> bool:
    """Whether a repository is a folder or is used by many programs; its branch is ignored."""
    owner, slash, name = repository.partition(":")[0].lower().partition("/")
    return not slash or owner in (".", "..", "", "~") or owner in _OWNERS or modules.installs(name)


def _unlisted(module: str, is_used: bool) -> str:
    use = "" if is_used else " and uses nothing of it"
    return f"imports {module[:60]}, which is not on the list of allowed modules{use}"


def _members(view: View) -> list[Note]:
    """Find forbidden members of allowed modules: ``random._os``, ``math.addition``."""
    program = view.program
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
        if _rebound(scope, base.id, program) or not view.modules.allows(module):
            continue
        if not isinstance(node.ctx, ast.Load):
            continue
        if problem := view.modules.path_problem(module, path[::-1]):
            imported = _imported(program) if imported is None else imported
            member = f"{module}.{path[-1]}"
            # If the question describes "math.hcf" as a tool, programs will call it.
            if member not in imported and not _names(view.asked, member.lower()):
                notes.append(view.note("module_member", node, f"uses what {problem}"))
    return notes


def _names(question: str, member: str) -> bool:
    """Whether the question names a member, or something below it, as a whole name outside URLs."""
    return re.search(rf"(?<![\w./:-]){re.escape(member)}(?![\w/-])", question) is not None


def _imported(program: Program) -> set[str]:
    """Return modules imported by full name: ``import xml.dom`` makes ``dom`` part of ``xml``."""
    return {
        alias.name
        for node, _ in program.imports
        if isinstance(node, ast.Import)
        for alias in node.names
    }


def _rebound(scope: Scope, name: str, program: Program) -> bool:
    """Whether a module is hidden in a scope by a parameter, or by a local variable not imported."""
    owner = scope.owner(name)
    if owner is None or owner.kind == "module":
        return False
    return not any(
        where is owner and any((a.asname or a.name.partition(".")[0]) == name for a in node.names)
        for node, where in program.imports
    )


def check_preloaded(view: View) -> list[Note]:
    """Find calls to undefined functions that do an operator's work: ``addition(2, 3)``.

    Such calls earn a reward only if the sandbox provides the functions, as the paper's sandbox does
    with its library.
    """
    program = view.program
    called = _preloaded(program)
    unknown = called - _BUILTIN - view.names - program.module.bound.keys()
    if not unknown or not program.runs:
        return []
    for node, _ in program.imports:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            members = public_members(node.module or "")
            unknown = set() if members is None else unknown - members
    unknown -= _slips(program, view.modules, unknown)
    found: dict[str, Note] = {}
    for name, scope in program.loads:
        if name.id not in unknown - found.keys() or scope.owner(name.id) is not None:
            continue
        if view.strict and id(name) in program.called and not program.is_dead(scope):
            message = f"calls {name.id[:60]}, which nothing defines, to do the work of an operator"
            found[name.id] = view.note("operator_library", name, message)
    return list(found.values())


def _preloaded(program: Program) -> Set[str]:
    """Return names called like an operator on two operands: ``add(a, 3)``, ``calc.add(2, 3)``.

    Adding one object to another does not count: ``session.add(user)``, ``cart.add(book, 2)``.
    """
    found = set()
    for call, _ in program.calls:
        function = call.func
        base = function.value if isinstance(function, ast.Attribute) else function
        name = function.attr if isinstance(function, ast.Attribute) else getattr(base, "id", "")
        if not isinstance(base, ast.Name) or name.lower() not in OPERATIONS or len(call.args) != 2:
            continue
        if base is function or all(isinstance(arg, _OPERANDS) for arg in call.args):
            found.add(base.id)
    return found


def _slips(program: Program, modules: Modules, unknown: Set[str]) -> Set[str]:
    """Return the unknown names that are just forgotten imports.

    These are names from common modules (`forgotten`), plus names from sympy if the program imports
    other names from it.
    """
    known = forgotten()
    slips = {name for name in unknown & known.keys() if modules.allows(known[name])}
    if any(module.partition(".")[0] == "sympy" for module, _ in program.members.values()):
        slips |= unknown & (public_members("sympy") or frozenset())
    return slips


def scan(text: str, modules: Modules) -> list[Note]:
    """Find forbidden imports in text that does not parse. Relative imports name no package."""
    notes = []
    for match in _IMPORT.finditer(text) if "import" in text else ():
        module = match[1] or match[2]
        if not module.startswith(".") and not modules.allows(module):
            notes.append(Note("unlisted_import", _unlisted(module, True), *match.span()))
            if len(notes) > 20:
                break
    return notes
