"""Find code that a program creates or runs at run time, which static checks cannot see.

A *mention* of ``eval`` or the like is enough, even without a call: ``e = eval``, ``@exec`` and
``map(eval, ...)`` hide the call, and an honest solution never needs the name. Strings that are run
as code are sympy formulas, annotations, doctests, programs for ``timeit``, and pickled bytes.
"""

import ast
import re
from typing import Final

from grpo_guard.content.code.imports import check_imports, scan
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.read import View
from grpo_guard.content.code.source import Note, Source, parse
from grpo_guard.content.word_set import word_set

# Noted even if the module rebinds the name: if the rebinding is never run, the builtin is used.
_DYNAMIC: Final = word_set(
    "eval exec compile __import__ breakpoint globals locals execfile reload raw_input "
    "__builtins__ __loader__ __spec__ __build_class__"
)
# Attributes that let a program import a module whose name is given as a string.
_IMPORTING: Final = word_set(
    "__import__ __builtins__ __loader__ __spec__ __globals__ __subclasses__ load_module"
)


def check_dynamic(view: View) -> list[Note]:
    """Find names and attributes that run or import strings, and classes made by ``type(...)``."""
    return _names(view) + _attributes(view) + _made_classes(view)


def _names(view: View) -> list[Note]:
    program = view.program
    notes: list[Note] = []
    if _DYNAMIC.isdisjoint(program.read_names):
        return notes
    for node, scope in program.loads:
        owner = scope.owner(node.id) if node.id in _DYNAMIC else None
        # A parameter or local variable never falls through to the builtin.
        if node.id in _DYNAMIC and (owner is None or owner.kind in ("module", "class")):
            message = f"uses {node.id}, which runs code that cannot be seen here"
            notes.append(view.note("dynamic_code", node, message))
    return notes


def _attributes(view: View) -> list[Note]:
    program = view.program
    if _IMPORTING.isdisjoint(program.read_attributes):
        return []
    return [
        view.note("dynamic_code", node, f"uses .{node.attr}, which imports by name")
        for node, _ in program.attributes
        if node.attr in _IMPORTING and getattr(node.value, "id", "") not in ("self", "cls")
    ]


def _made_classes(view: View) -> list[Note]:
    """Find classes built by ``type("X", (), {...})``, including through a copy of `type`."""
    program = view.program
    notes: list[Note] = []
    if "type" not in program.read_names:
        return notes
    for call, _ in program.calls:
        function = call.func
        count = len(call.args) + len(call.keywords)
        made = count >= 3 and _is_builtin_type(function)
        if isinstance(function, ast.Call) and _is_builtin_type(function.func) and function.args:
            made |= _is_builtin_type(function.args[0])  # type(type)(...)
        if made:
            notes.append(view.note("dynamic_code", call, "builds a class with type()"))
    copied = {id(name) for _, name in program.copies}
    for node, scope in program.loads:
        if node.id == "type" and id(node) in copied and scope.owner("type") is None:
            notes.append(view.note("dynamic_code", node, "passes type on as a value"))
    return notes


def _is_builtin_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "type"


MAX_LEVELS: Final = 40
# Members of sympy that merely name a symbol, or print.
_NAMING: Final = word_set(
    "Symbol symbols Dummy Wild Function UndefinedFunction var IndexedBase Idx MatrixSymbol pprint "
    "pretty latex print_latex Str Integer Float Rational pretty_print plot mathematica_code "
    "RandomSymbol Die Coin Normal Uniform Binomial Bernoulli Poisson Exponential Geometric"
)
_CALLED: Final = (
    "eval exec compile open input getattr setattr delattr vars dir globals locals breakpoint "
    "help type object chr bytes bytearray memoryview super classmethod staticmethod property map "
    "filter sympify parse_expr lambdify import os sys subprocess"
)
# Formulas consist of names, numbers and operators and contain none of these.
_NO_FORMULA: Final = re.compile(rf"__|['\"\\`@;:]|\blambda\b|\b(?:{'|'.join(_CALLED.split())})\b")
_PYTHON: Final = word_set(
    "print str len int float repr sorted list tuple set dict format ord chr max min sum any all "
    "isinstance enumerate zip range reversed"
)
_MAKERS: Final = word_set("str chr repr ascii format")
_METHODS: Final = word_set(
    "join format format_map replace lower upper swapcase casefold strip lstrip rstrip title decode "
    "translate removeprefix removesuffix ljust rjust center zfill"
)
# Arrays and expressions also have methods with these names.
_SHARED: Final = word_set("replace format")
_TYPES: Final = (
    ast.Constant, ast.BinOp, ast.BitOr, ast.Subscript, ast.Tuple, ast.List, ast.Name,
    ast.Attribute, ast.Load,
)  # fmt: skip
_EVALUATING: Final = word_set("singledispatch singledispatchmethod")
MAX_STRINGS: Final = 50
_MODULES: Final = word_set("timeit cProfile profile pdb bdb trace")
_RUNNING: Final = word_set("timeit repeat Timer run runctx runeval set_trace")
_BUILDING: Final = word_set("join decode translate fromhex b64decode unhexlify decompress")
_DECODING: Final = _BUILDING | word_set(
    "b16decode b32decode b85decode a85decode standard_b64decode urlsafe_b64decode encode a2b_hex "
    "a2b_base64 bytes bytearray"
)
_PICKLES: Final = word_set("pickle _pickle cPickle dill cloudpickle jsonpickle")
# A doctest line in a docstring.
_EXAMPLE: Final = re.compile(r"^[ \t]*(?:>>>|\.\.\.)(?:[ \t]([^\r\n]*)|$)", re.M)


def check_evaluated(view: View) -> list[Note]:
    """Find strings that are run as code.

    These are arguments of sympy that are not formulas, computed annotations, programs for
    profilers, timers and debuggers, and pickles that the program itself contains.
    """
    return _algebra(view) + _annotations(view) + _runs(view) + _unpickled(view)


def examples(program: Program) -> str | None:
    """Return the lines that ``doctest.testmod()`` would run, or None if doctest is not imported.

    Args:
        program: The program, as returned by `read`.
    """
    if "doctest" not in program.packages:
        return None
    texts = [node.value for node in program.texts if isinstance(node.value, str)]
    lines = [m[1] or "" for text in texts if ">>>" in text for m in _EXAMPLE.finditer(text)]
    return "\n".join(lines)


def _algebra(view: View) -> list[Note]:
    program = view.program
    modules = {name for name, module in program.aliases.items() if _is_sympy(module)}
    members = {name for name, (module, _) in program.members.items() if _is_sympy(module)}
    if not modules and not members:
        return []
    texts = _text_names(program)
    notes = []
    for call, scope in program.calls:
        name = _function(call.func, program, modules, members)
        if name is None and "*" in members and isinstance(call.func, ast.Name):
            # from sympy import *: any name not defined elsewhere.
            name = call.func.id if scope.owner(call.func.id) is None else None
        if name is None or name in _NAMING or name in _PYTHON or name.endswith("Error"):
            continue
        for argument in _flat_arguments(call):
            if _is_text(argument, texts) and (problem := _problem(argument, program)):
                message = f"{name[:40]} evaluates {problem}"
                notes.append(view.note("dynamic_code", call, message))
                break
    return notes


def _is_sympy(module: str) -> bool:
    return module.partition(".")[0] == "sympy"


def _function(
    function: ast.expr, program: Program, modules: set[str], members: set[str]
) -> str | None:
    """Return the name of a called sympy function, or None for any other function."""
    if isinstance(function, ast.Name):
        return program.members[function.id][1] if function.id in members else None
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr == "subs":  # the method of any expression
        return "subs"
    base = function.value
    while isinstance(base, ast.Attribute):
        base = base.value
    return function.attr if isinstance(base, ast.Name) and base.id in modules else None


def _flat_arguments(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, flattening any lists and tuples among them."""
    found: list[ast.expr] = []
    for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if isinstance(value, ast.Starred):
            value = value.value
        found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return found


def _problem(argument: ast.expr, program: Program) -> str | None:
    if isinstance(argument, ast.Name):
        argument = program.constants.get(argument.id, argument)
    text = argument.value if isinstance(argument, ast.Constant) else None
    if not isinstance(text, str):
        return "a text built from parts"
    if match := _NO_FORMULA.search(text):
        return f"a text with {match[0][:40]!r}, which is not a formula"
    return None


def _text_names(program: Program) -> set[str]:
    """Return the names that hold text, as far as static analysis can tell."""
    names: set[str] = set()
    # A name can get its text from another name further down.
    for _ in range(3):
        names |= {name for name, value in program.literals if _is_text(value, names)}
    return names


def _is_text(node: ast.expr, names: set[str], levels: int = MAX_LEVELS) -> bool:
    """Whether an expression is certain to hold text: a literal, or something built from one."""
    while isinstance(node, ast.BinOp | ast.Subscript):
        if isinstance(node, ast.Subscript):
            # A letter or slice of text; an item of a dictionary could be anything.
            node = node.value
            continue
        if levels <= 0 or _is_text(node.right, names, levels // 2):
            return levels > 0 and isinstance(node.op, ast.Add | ast.Mult)
        node = node.left
    if isinstance(node, ast.Name):
        return node.id in names
    if not isinstance(node, ast.Call):
        return isinstance(getattr(node, "value", None), str) or isinstance(node, ast.JoinedStr)
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in _METHODS:
        own = function.attr not in _SHARED
        return own or (levels > 0 and _is_text(function.value, names, levels - 1))
    return isinstance(function, ast.Name) and function.id in _MAKERS


def _annotations(view: View) -> list[Note]:
    """Find annotations that are not plain types: ``functools.singledispatch`` evaluates strings."""
    program = view.program
    imported = {member for module, member in program.members.values() if module == "functools"}
    if "*" not in imported and _EVALUATING.isdisjoint(imported | program.read_attributes):
        return []
    notes = []
    for scope in program.scopes:
        arguments = getattr(scope.node, "args", None)
        if not isinstance(arguments, ast.arguments) or isinstance(scope.node, ast.Lambda):
            continue
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
        hints = [argument.annotation for argument in every]
        for annotation in [*hints, getattr(scope.node, "returns", None)]:
            if annotation is not None and not _is_type(annotation):
                message = "computes an annotation, which singledispatch evaluates"
                notes.append(view.note("dynamic_code", annotation, message))
    changed = [n for n, _ in program.attributes if n.attr == "__annotations__"]
    message = "changes annotations, which singledispatch evaluates"
    notes += [view.note("dynamic_code", node, message) for node in changed]
    return notes


def _is_type(node: ast.expr) -> bool:
    """Whether an annotation is a plain type, such as ``int``, ``"Node"``, ``list[int] | None``."""
    for part in ast.walk(node):
        text = part.value if isinstance(part, ast.Constant) else None
        if isinstance(text, str) and not all(c.isalnum() or c in "_.[], |" for c in text):
            return False
        if not isinstance(part, _TYPES) or (
            isinstance(part, ast.BinOp) and not isinstance(part.op, ast.BitOr)
        ):
            return False
    return True


def _runs(view: View, levels: int = 3) -> list[Note]:
    """Check the strings that profilers, timers and debuggers run as programs.

    Covers the imports of these programs, plus any strings that the programs run in turn. A string
    that is joined or decoded at run time is noted; in any other expression, the literal strings are
    searched for imports.
    """
    program = view.program
    if levels == 0 or _MODULES.isdisjoint(program.packages):
        return []
    notes: list[Note] = []
    left = MAX_STRINGS
    for call, _ in program.calls:
        if left and _runs_text(call.func, program):
            for argument in [*call.args[:2], *(keyword.value for keyword in call.keywords)]:
                left -= 1
                found = _found(argument, view, levels)
                notes += [view.note(kind, call, message) for kind, message in found]
    return notes


def _runs_text(function: ast.expr, program: Program) -> bool:
    if isinstance(function, ast.Name):
        module, member = program.functions.get(function.id, ("", ""))
        return member in _RUNNING and module in _MODULES
    return isinstance(function, ast.Attribute) and function.attr in _RUNNING


def _found(argument: ast.expr, view: View, levels: int) -> list[tuple[str, str]]:
    program = view.program
    if isinstance(argument, ast.Name):
        argument = program.constants.get(argument.id, argument)
    text = program.text_of(argument)
    if text is not None:
        return [(note.kind, note.message) for note in _read_in_turn(text, view, levels)]
    if isinstance(argument, ast.Lambda | ast.Name | ast.Attribute | ast.Constant):
        return []
    texts: list[str] = []
    for part in ast.walk(argument):
        if isinstance(part, ast.Call):
            name = getattr(part.func, "attr", getattr(part.func, "id", ""))
            if name in _BUILDING or name == "chr":
                return [("dynamic_code", "runs a string that is put together from parts")]
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            texts.append(part.value)
    return [(note.kind, note.message) for text in texts for note in scan(text, view.modules)]


def _unpickled(view: View) -> list[Note]:
    """Find pickles written out in the program: loading one runs whatever it names.

    An honest program loads what it has saved, from a file or from ``dumps``.
    """
    program = view.program
    if _PICKLES.isdisjoint(program.packages):
        return []
    message = "loads a pickle that is written out here, which can run any code"
    return [
        view.note("dynamic_code", call, message)
        for call, _ in program.calls
        if call.args and _loads_pickle(call.func, program) and _is_literal(call.args[0], program)
    ]


def _loads_pickle(function: ast.expr, program: Program) -> bool:
    if isinstance(function, ast.Name):
        module, member = program.functions.get(function.id, ("", ""))
        return module in _PICKLES and member in ("loads", "decode")
    if not isinstance(function, ast.Attribute) or function.attr not in ("loads", "decode"):
        return False
    base = function.value
    return isinstance(base, ast.Name) and program.aliases.get(base.id, base.id) in _PICKLES


def _is_literal(node: ast.expr, program: Program, levels: int = MAX_LEVELS) -> bool:
    """Whether an expression decodes or joins constants only, such as ``b64decode("...")``."""
    if levels == 0:
        return True  # no honest program nests this deep
    if isinstance(node, ast.Name):
        value = program.constants.get(node.id)
        return value is not None and _is_literal(value, program, levels - 1)
    if isinstance(node, ast.BinOp):
        return all(_is_literal(n, program, levels // 2) for n in (node.left, node.right))
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Constant)
    function, given = node.func, node.args[:1]
    if isinstance(function, ast.Name):
        name = program.functions.get(function.id, ("", function.id))[1]
    else:
        name = getattr(function, "attr", "")
        if not given and isinstance(function, ast.Attribute):
            given = [function.value]  # "...".encode()
    return name in _DECODING and any(_is_literal(n, program, levels - 1) for n in given)


def _read_in_turn(text: str, view: View, levels: int) -> list[Note]:
    source = Source(text)
    inside = view.inside(parse(source), source)
    if inside is None:
        return scan(text, view.modules)
    # The function to be timed is usually imported from the program itself.
    inside.program.imports = [
        (node, scope)
        for node, scope in inside.program.imports
        if "__main__" not in (getattr(node, "module", ""), node.names[0].name)
    ]
    return check_imports(inside) + check_dynamic(inside) + _runs(inside, levels - 1)
