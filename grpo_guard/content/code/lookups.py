"""Attributes that are looked up by name: ``getattr(x, "__cl" + "ass__")``, and in format strings.

A name that stands there as one literal is judged; one that is put together, or comes from
anywhere else, may be any.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Final

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.program import Program, Scope
from grpo_guard.content.code.source import Note, words
from grpo_guard.content.code.view import View

BY_NAME: Final = words("getattr setattr delattr hasattr")
# getattr(self, name) is how a class dispatches; what it can reach is its own.
_OWN: Final = words("self cls")
# getattr, and a call of what it gives, as functions that are made first: operator's.
GETTERS: Final = words("attrgetter methodcaller")

_COMPUTED: Final = "a computed name"
_FORMAT_WALK: Final = re.compile(
    r"\{[^{}\n]{0,80}(?:\.__(?!(?:class__\.__)?(?:name|qualname|doc)__)|\[__)"
)
# Half of such a field, to be ended by what no literal shows: ("{0." + name + "}").format(x).
_OPEN_FIELD: Final = re.compile(
    r"\{(?:\w{1,40}+\[|\w{0,40}+\.(?=[^\d{}]|\Z))[^{}:!\s%]{0,80}+(?:\Z|%s)"
)
_FORMATS: Final = words("format format_map")


class _Looks:
    """What is needed to judge one lookup, gathered once per program."""

    def __init__(self, program: Program, modules: Modules, reaching: frozenset[str]) -> None:
        self.modules = modules
        self.reaching = reaching
        self.listed = _listed(program)
        self.constants = program.constants
        self.fields = _over_fields(program)

    def text(self, node: ast.expr) -> str | None:
        """The text of a literal, or of a name that stands for one; None for any other."""
        if isinstance(node, ast.Name):
            node = self.constants.get(node.id, node)
        value = node.value if isinstance(node, ast.Constant) else None
        return value if isinstance(value, str) else None


def check_lookups(view: View, reaching: frozenset[str]) -> list[Note]:
    """Calls of ``getattr`` and its like that can reach what no name in the program shows.

    Args:
        view: The program.
        reaching: Names of attributes that a program must not use.
    """
    program = view.program
    looks = _Looks(program, view.modules, reaching)
    notes = _getters(view, looks) + _formats(view)
    if BY_NAME.isdisjoint(program.read_names):
        return notes
    direct, own = set[int](), _Own(program)
    for call, scope in program.calls:
        function = call.func
        if not isinstance(function, ast.Name) or function.id not in BY_NAME:
            continue
        direct.add(id(function))
        if not call.args:
            continue
        target = call.args[0]
        module = program.aliases.get(target.id) if isinstance(target, ast.Name) else None
        if module and function.id in ("setattr", "delattr"):
            message = f"changes the imported module {module[:40]}"
            notes.append(view.note("monkeypatch", call, message))
            continue
        if problem := _problem(call, module, looks):
            message = f"{function.id} with {problem} can reach any attribute"
            # hasattr gives nothing away, except that a name is put together.
            plain = problem == _COMPUTED or isinstance(call.args[-1], ast.Constant)
            if function.id == "hasattr" and plain:
                continue
            if problem != _COMPUTED or not own.has(target, scope):
                notes.append(view.note("computed_attribute", call, message))
    for node, scope in program.loads:
        if node.id in BY_NAME and id(node) not in direct and scope.owner(node.id) is None:
            message = f"passes {node.id} on as a value"
            notes.append(view.note("computed_attribute", node, message))
    return notes


class _Own:
    """Which names stand for what a method is called on, and not for anything under that name."""

    def __init__(self, program: Program) -> None:
        self.set_anew = {id(at) for node, at in program.stores if node.id in _OWN}
        classes = {node.name for node in program.classes}
        # Called on its class, a method takes anything for itself.
        self.on_class = {
            node.attr
            for node, _ in program.attributes
            if isinstance(node.value, ast.Name) and node.value.id in classes
        }

    def has(self, target: ast.expr, scope: Scope) -> bool:
        """Whether a name, read in this scope, is such."""
        if not isinstance(target, ast.Name) or target.id not in _OWN:
            return False
        method = scope.owner(target.id)
        if method is None or method.parent is None or method.parent.kind != "class":
            return False
        if not isinstance(method.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        arguments = method.node.args
        first = [one.arg for one in [*arguments.posonlyargs, *arguments.args][:1]]
        marks = {node.id for node in method.node.decorator_list if isinstance(node, ast.Name)}
        if first != [target.id] or "staticmethod" in marks or id(method) in self.set_anew:
            return False
        return "classmethod" in marks or method.name not in self.on_class


def _getters(view: View, looks: _Looks) -> list[Note]:
    """``attrgetter("__cl" + "ass__")(x)``, and the makers of such functions passed on unseen."""
    program = view.program
    named = {n: m for n, (module, m) in program.members.items() if module == "operator"}
    if "*" in named.values():
        named |= {name: name for name in GETTERS}
    makers: list[tuple[ast.expr, str]] = []
    if not GETTERS.isdisjoint(named.values()):
        makers += [(n, named[n.id]) for n, _ in program.loads if named.get(n.id) in GETTERS]
    if not GETTERS.isdisjoint(program.read_attributes):
        for node, _ in program.attributes:
            base = program.aliases.get(getattr(node.value, "id", ""))
            if node.attr in GETTERS and base == "operator":
                makers.append((node, node.attr))
    calls = {id(call.func): call for call, _ in program.calls} if makers else {}
    notes = []
    for maker, name in makers:
        call = calls.get(id(maker))
        if call is None:
            notes.append(view.note("computed_attribute", maker, f"passes {name} on as a value"))
        elif problem := _made(call, name, looks):
            message = f"{name} with {problem} can reach any attribute"
            notes.append(view.note("computed_attribute", maker, message))
    return notes


def _formats(view: View) -> list[Note]:
    """Format strings that read private attributes, or whose fields are completed unseen."""
    program = view.program
    notes = []
    completed = not _FORMATS.isdisjoint(program.read_attributes)
    for node in program.texts:
        text = node.value
        if not isinstance(text, str) or "{" not in text:
            continue
        if "__" in text and _FORMAT_WALK.search(text):
            message = "a format string reads private attributes"
        elif completed and _OPEN_FIELD.search(text):
            message = "a format string is completed with a name that is not shown"
        else:
            continue
        notes.append(view.note("format_trick", node, message))
    return notes


def _made(call: ast.Call, maker: str, looks: _Looks) -> str | None:
    """What is wrong with the names that a getter is made for; None where they are plain."""
    names = call.args[:1] if maker == "methodcaller" else call.args
    for name in names:
        text = looks.text(name)
        if isinstance(name, ast.Name) and name.id in looks.listed:
            bad = [value for value in looks.listed[name.id] if _reaches(value, looks)]
            if bad:
                return repr(bad[0][:40])
        elif text is None:
            return _COMPUTED
        elif _reaches(text, looks):
            return repr(text[:40])
    return None


def _reaches(path: str, looks: _Looks) -> bool:
    """Whether a dotted name leads where a program must not."""
    return not looks.reaching.isdisjoint(path.split("."))


def _problem(call: ast.Call, module: str | None, looks: _Looks) -> str | None:
    """What is wrong with the name that is looked up; None where it is plain to see."""
    name = call.args[1] if len(call.args) > 1 else None
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        if module:
            return looks.modules.problem(module, name.value)
        return repr(name.value[:40]) if name.value in looks.reaching else None
    if name is None or module:
        return _COMPUTED
    if isinstance(name, ast.Name):
        if (text := looks.text(name)) is not None:
            return repr(text[:40]) if text in looks.reaching else None
        if name.id not in looks.listed:
            return _COMPUTED
        bad = next((value for value in looks.listed[name.id] if value in looks.reaching), None)
        return None if bad is None else repr(bad[:40])
    if isinstance(name, ast.Attribute) and name.attr == "name" and looks.fields:
        return None
    return None if _prefixed(name, looks.reaching) else _COMPUTED


def _listed(program: Program) -> dict[str, list[str]]:
    """The strings that loops' variables run over: ``for color in ("red", "blue")``. A variable
    that also gets another value is left out."""
    times = Counter(store.id for store, _ in program.stores)
    bound = Counter(name for scope in program.scopes for name in scope.bound)
    loops: list[ast.For | ast.comprehension] = [
        loop for loop in program.loops if isinstance(loop, ast.For)
    ]
    for inner in program.scopes:
        loops += getattr(inner.node, "generators", [])
    found: dict[str, list[str]] = {}
    for loop in loops:
        over = loop.iter
        if not isinstance(over, ast.List | ast.Tuple | ast.Set) or not over.elts:
            continue
        values = [e.value for e in over.elts if isinstance(e, ast.Constant)]
        texts = [value for value in values if isinstance(value, str)]
        name = loop.target.id if isinstance(loop.target, ast.Name) else ""
        once = times[name] == bound[name] == 1 and name not in program.deleted
        if once and len(texts) == len(over.elts):
            found[name] = texts
    return found


def _over_fields(program: Program) -> bool:
    """``for f in fields(order): getattr(order, f.name)`` reads a dataclass's own fields."""
    fields = ("dataclasses", "fields")
    return fields in program.members.values() or "dataclasses" in program.aliases.values()


def _prefixed(name: ast.expr, reaching: frozenset[str]) -> bool:
    """Whether a computed name begins as no dangerous one does: ``f"step_{n}"``."""
    first: ast.expr = name
    while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add):
        first = first.left
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    prefix = first.value if isinstance(first, ast.Constant) and first is not name else ""
    if not isinstance(prefix, str) or len(prefix) < 2 or prefix.startswith("_"):
        return False
    return not any(bad.startswith(prefix) for bad in reaching)
