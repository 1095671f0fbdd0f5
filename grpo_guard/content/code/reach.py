"""Names and attributes that reach the system, files, the network, dynamic code or the interpreter.

A *mention* is enough, not only a call: ``e = eval``, ``@exec`` or ``map(eval, ...)`` hide the call,
and an honest solution of a word problem has no use for the name in any place.
"""

from __future__ import annotations

import ast
from typing import Final

from grpo_guard.content.code.program import Program, Scope
from grpo_guard.content.code.source import Note, words
from grpo_guard.content.code.view import View

# Never the program's own: a module-level rebinding that does not happen falls through to these.
_DYNAMIC: Final = words(
    "eval exec compile __import__ breakpoint globals locals execfile reload raw_input "
    "__builtins__ __loader__ __spec__ __build_class__"
)
# Honest programs use some of these words for their own values (an opening price, an input).
_REACHING: Final = words("open input vars help dir credits license copyright")
# What the interpreter itself gives functions, classes, modules, frames and code, as far as a way
# leads from there to anything else. Other names in underscores are a library's own protocol.
_INTERNALS: Final = words(
    "__bases__ __base__ __mro__ __subclasses__ __globals__ __code__ __closure__ __builtins__ "
    "__import__ __loader__ __spec__ __getattribute__ __getattr__ __reduce__ __reduce_ex__ __dict__ "
    "__self__ __func__ __call__ __kwdefaults__ __defaults__ __traceback__ __objclass__ "
    "__mro_entries__ __subclasshook__ __instancecheck__ __subclasscheck__ __prepare__ __del__ "
    "__delattr__ __dir__ __getstate__ __setstate__ __getnewargs__ __getnewargs_ex__ "
    "__class_getitem__ __path__ __cached__ __package__ __type_params__ __annotate__ "
    "__annotate_func__ __annotations_cache__ __thisclass__ __self_class__ __array_interface__ "
    "__array_struct__ __forward_arg__ __forward_code__"
)
# What a lookup by name is used for when it should not be seen.
_LOOKED_UP: Final = words(
    "__class__ __bases__ __base__ __mro__ __subclasses__ __globals__ __code__ __closure__ "
    "__builtins__ __import__ __loader__ __spec__ __getattribute__ __reduce__ __reduce_ex__ "
    "__dict__ __self__ __func__ __kwdefaults__ __defaults__"
)
# By these a program imports what stands in a string.
_IMPORTING: Final = words(
    "__import__ __builtins__ __loader__ __spec__ __globals__ __subclasses__ load_module"
)
_FRAMES: Final = words(
    "f_globals f_locals f_builtins f_back f_code gi_frame gi_code cr_frame cr_code ag_frame "
    "ag_code tb_frame tb_next co_code co_consts co_names func_globals func_code mro"
)
_MODULES: Final = words(
    "os sys subprocess builtins importlib socket shutil ctypes pickle posix marshal inspect pty "
    "codecs _os _sys _io _builtins _posixsubprocess"
)
_SYSTEM: Final = words(
    "system popen Popen check_output execv execve execvp spawnl spawnv fork urlopen urlretrieve "
    "import_module read_text write_text read_bytes write_bytes rmtree tofile load_module "
    "exec_module find_spec loadLibrary CDLL get_type_hints parse_expr"
)
# What must not be looked up by name either.
_LOOKUPS: Final = (
    _LOOKED_UP | (_INTERNALS - {"__call__"}) | _FRAMES | _MODULES | _SYSTEM | _DYNAMIC | {"open"}
)
_POSITIONS: Final = "__match_args__"
# What a class pattern must not read: case object(__class__=c).
_MATCHED: Final = _LOOKED_UP | (_INTERNALS - {"__call__"}) | _FRAMES | _MODULES | {"__init__"}
_HOOKS: Final = words("__reduce__ __reduce_ex__")
_NAMES: Final = _DYNAMIC | _REACHING | _INTERNALS
# The file behind standard input, whose class opens any other.
_BEHIND_STDIN: Final = words("raw detach fileno reconfigure")
_WRITERS: Final = words("type basicConfig dump")
_RUNNING: Final = words("exit verbosity failfast")
_OPTIONS: Final = words("mode encoding errors newline buffering")
_NAMING: Final = frozenset({"__name__", "__qualname__", "__doc__"})
_ATTRIBUTES: Final = _INTERNALS | _FRAMES | _MODULES | _SYSTEM | {"__class__"}


def check_reach(view: View) -> list[Note]:
    """All notes about dangerous names, attributes, calls, classes and patterns.

    With standard input, a program may do with it what it likes, except to go behind it.
    """
    notes = _names(view) + _attributes(view) + _calls(view) + _classes(view) + _tests(view)
    notes += _patterns(view, _MATCHED)
    program = view.program
    streams = "stdin" in program.read_attributes or "open" in program.read_names
    if view.stdin and (streams or ("sys", "stdin") in program.members.values()):
        # sys.stdin.buffer.raw, by whatever name: its class opens any file.
        behind = [node for node, _ in program.attributes if node.attr in _BEHIND_STDIN]
        notes += [view.note("reaches_out", n, f"uses .{n.attr} of a stream") for n in behind]
        notes += _patterns(view, _BEHIND_STDIN)
    return notes


def hidden_names(stdin: bool) -> frozenset[str]:
    """What must not be looked up by name either."""
    return _LOOKUPS | _BEHIND_STDIN if stdin else _LOOKUPS


def _names(view: View) -> list[Note]:
    program = view.program
    notes: list[Note] = []
    if _NAMES.isdisjoint(program.read_names):
        return notes
    fine = _uses_that_stay(program, view.stdin)
    for node, scope in program.loads:
        name = node.id
        if name not in _NAMES:
            continue
        if name in _DYNAMIC:
            owner = scope.owner(name)
            # A parameter or local never falls through to the builtin.
            if owner is not None and owner.kind in ("function", "expression"):
                continue
            kind, what = "dynamic_code", "runs code that cannot be seen here"
        elif name in _REACHING:
            own = id(node) in fine or _is_own(program, scope, name, node.lineno)
            if own or (view.stdin and name == "input"):
                continue
            kind, what = "reaches_out", "reaches outside the program"
        elif scope.owner(name) is None:
            kind, what = "interpreter_internals", "opens the interpreter's internals"
        else:
            continue
        notes.append(view.note(kind, node, f"uses {name}, which {what}"))
    return notes


def _uses_that_stay(program: Program, stdin: bool) -> set[int]:
    """Where ``vars`` stands in ``vars(self)``, a class that reads its own fields, and ``open`` in
    ``open(0)``, which opens standard input."""
    found = set()
    for call, _ in program.calls:
        name, first = getattr(call.func, "id", ""), call.args[0] if call.args else None
        if name == "vars" and len(call.args) == 1 and getattr(first, "id", "") == "self":
            found.add(id(call.func))
        if not stdin or name != "open" or not isinstance(first, ast.Constant):
            continue
        values = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
        read = all(isinstance(v, ast.Constant) and v.value in ("r", "rb", "rt") for v in values)
        plain = len(call.args) <= 2 and all(k.arg in _OPTIONS for k in call.keywords)
        # False is a zero too, and nobody opens it.
        zero = first.value in (0, "/dev/stdin") and type(first.value) is not bool
        if zero and read and plain:
            found.add(id(call.func))
    return found


def _is_own(program: Program, scope: Scope, name: str, line: int) -> bool:
    """Whether the program itself gave the name a value that is certain to be there."""
    owner = scope.owner(name)
    if owner is None or name in program.deleted or owner.kind == "class":
        return False
    if owner.kind != "module":
        return True
    first = program.certain.get(name)
    return first is not None and (scope.kind != "module" or first <= line)


def _attributes(view: View) -> list[Note]:
    program = view.program
    notes: list[Note] = []
    if _ATTRIBUTES.isdisjoint(program.read_attributes):
        return notes
    # A solar .system is no os.system: these names count only where they are called.
    called: set[int] | None = None
    naming: set[int] | None = None
    for node, scope in program.attributes:
        name = node.attr
        if name not in _ATTRIBUTES or (name == "__call__" and not _is_type(node.value)):
            continue
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if name == "__class__":
            if naming is None:
                naming = {id(a.value) for a, _ in program.attributes if a.attr in _NAMING}
            # self.__class__(...) and x.__class__.__name__ are how a class speaks of itself.
            if id(node) in naming or _is_value(program, node):
                continue
            kind, what = "interpreter_internals", "reaches the class behind a value"
        elif name == "__dict__" and (own or _is_own_value(program, node, scope)):
            continue
        elif name in _IMPORTING and not own:
            kind, what = "dynamic_code", "imports by name"
        elif name in _INTERNALS or (name in _FRAMES and not own):
            kind, what = "interpreter_internals", "opens the interpreter's internals"
        elif name in _MODULES and not own:
            kind, what = "module_walk", "reaches one module through another"
        elif name in _SYSTEM and not own:
            if called is None:
                called = {id(call.func) for call, _ in program.calls}
            if id(node) not in called:
                continue
            kind, what = "reaches_out", "reaches outside the program"
        else:
            continue
        notes.append(view.note(kind, node, f"uses .{name}, which {what}"))
    return notes


def _is_own_value(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """``worker.__dict__`` of a name that the program defines, read to see its fields."""
    base = node.value
    defined = isinstance(base, ast.Name) and scope.owner(base.id) is not None
    return defined and _is_value(program, node)


def _is_value(program: Program, node: ast.Attribute) -> bool:
    """Whether the attribute of a value that is no module's is only read."""
    base: ast.expr = node.value
    while isinstance(base, ast.Attribute):
        base = base.value
    plain = isinstance(base, ast.Name) and base.id not in program.aliases
    return plain and isinstance(node.ctx, ast.Load)


def _calls(view: View) -> list[Note]:
    program = view.program
    notes: list[Note] = []
    if _WRITERS.isdisjoint(program.read_attributes | program.read_names):
        return notes
    for call, _ in program.calls:
        function = call.func
        given = len(call.args) + len(call.keywords)
        if given >= 3 and isinstance(function, ast.Name) and function.id == "type":
            message = "builds a class with type()"
            notes.append(view.note("dynamic_code", call, message))
        elif isinstance(function, ast.Call) and _is_type(function.func) and function.args:
            if _is_type(function.args[0]):
                message = "builds a class with type(type)"
                notes.append(view.note("dynamic_code", call, message))
        elif isinstance(function, ast.Attribute) and _writes_file(call, function.attr):
            message = f"{function.attr} writes to a file"
            notes.append(view.note("reaches_out", call, message))
    copied = {id(name) for _, name in program.copies}
    for node, scope in program.loads:
        # T = type; T("X", (), {})
        if node.id == "type" and id(node) in copied and scope.owner("type") is None:
            message = "passes type on as a value"
            notes.append(view.note("dynamic_code", node, message))
    return notes


def _is_type(node: ast.expr) -> bool:
    """``type.__call__`` makes a class; that of other values is only a call."""
    return isinstance(node, ast.Name) and node.id == "type"


def _writes_file(call: ast.Call, name: str) -> bool:
    """``logging.basicConfig(filename=...)`` and an array's ``dump("path")``."""
    if name == "basicConfig":
        return any(keyword.arg in ("filename", "handlers") for keyword in call.keywords)
    if name != "dump":
        return False
    first = call.args[0] if call.args else None
    return len(call.args) == 1 and isinstance(first, ast.Constant) and isinstance(first.value, str)


def _tests(view: View) -> list[Note]:
    """``unittest.main("calc")`` and ``main(argv=["", "calc"])`` import by name."""
    program = view.program
    named: list[ast.expr] = [
        name for name, _ in program.loads if program.members.get(name.id) == ("unittest", "main")
    ]
    for node, _ in program.attributes:
        if node.attr == "main" and program.aliases.get(getattr(node.value, "id", "")) == "unittest":
            named.append(node)
    calls = {id(call.func): call for call, _ in program.calls} if named else {}
    notes = []
    for name in named:
        call = calls.get(id(name))
        options = {k.arg: k.value for k in call.keywords} if call else {}
        argv = options.pop("argv", None)
        one = argv is None or (isinstance(argv, ast.List) and len(argv.elts) <= 1)
        if call is None or call.args or not one or not options.keys() <= _RUNNING:
            message = "has unittest import what it is given by name"
            notes.append(view.note("reaches_out", name, message))
    return notes


def _classes(view: View) -> list[Note]:
    """Metaclasses and attribute hooks run code where nothing looks like a call."""
    program = view.program
    notes = []
    for node in program.classes:
        for keyword in node.keywords:
            value = keyword.value
            known = isinstance(value, ast.Name) and value.id in ("ABCMeta", "EnumMeta", "EnumType")
            known = known or (isinstance(value, ast.Attribute) and value.attr == "ABCMeta")
            if keyword.arg == "metaclass" and not known:
                message = f"class {node.name[:60]} hides calls in a metaclass"
                notes.append(view.note("hidden_call", node, message))
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name in _HOOKS:
                message = f"{statement.name} runs where nothing looks like a call"
                notes.append(view.note("hidden_call", statement, message))
    return notes


def _patterns(view: View, reaching: frozenset[str]) -> list[Note]:
    """Class patterns that walk from a value to what is behind it: ``case object(__class__=c)`` is
    ``c = x.__class__``; ``reaching`` are names of attributes that a program must not read."""
    program = view.program
    notes = []
    for pattern in program.patterns:
        bad = next((name for name in pattern.kwd_attrs if name in reaching), None)
        if bad is not None:
            message = f"matches .{bad}, which opens the interpreter's internals"
            notes.append(view.note("interpreter_internals", pattern, message))
    if _POSITIONS not in program.identifiers and _POSITIONS not in program.read_attributes:
        return notes
    # Patterns without names read the attributes that the class lists.
    plain = _plain_lists(program, reaching)
    changed: list[ast.expr] = [node for node, _ in program.stores if node.id == _POSITIONS]
    changed += [node for node, _ in program.attributes if node.attr == _POSITIONS]
    for node in changed:
        if id(node) not in plain:
            message = "computes the attributes that a pattern reads"
            notes.append(view.note("computed_attribute", node, message))
    return notes


def _plain_lists(program: Program, reaching: frozenset[str]) -> set[int]:
    """Targets of ``__match_args__ = ("x", "y")`` in classes."""
    found: set[int] = set()
    for node in program.classes:
        for statement in node.body:
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Tuple):
                continue
            names = [e.value for e in statement.value.elts if isinstance(e, ast.Constant)]
            if len(names) == len(statement.value.elts) and reaching.isdisjoint(names):
                found.update(map(id, statement.targets))
    return found
