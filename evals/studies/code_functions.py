"""Honest code that was not written for this check: functions cut out of libraries.

A function is taken together with the imports that it uses, and only if those are on the verifier's
list: code that imports its own package's internals, or a file system, is no model of a solution.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from grpo_guard.content.code.modules import DEFAULT
from grpo_guard.content.code.source import words

# Modules that compute: chosen by subject, before any of them was measured. The interpreter's own
# machinery (functools, enum, copy, typing, dataclasses) is no model of a solution.
LIBRARY: Final = words(
    "_pydecimal _strptime bisect calendar collections colorsys datetime difflib fractions graphlib "
    "heapq html.entities ipaddress json.decoder json.encoder json.scanner keyword numbers "
    "nturl2path pprint queue random reprlib sched shlex statistics string stringprep textwrap"
)
# Left out if they are not installed. The first thousand functions showed which checks to fix; the
# others were measured once afterwards.
PACKAGES: Final = ("mpmath", "networkx", "sympy")
MAX_LINES: Final = 60
MAX_FUNCTIONS: Final = 1000
OTHER_FUNCTIONS: Final = 1500
# The list at the first measurement: a module that was allowed later must not change the sample.
IMPORTABLE: Final = DEFAULT - words("argparse doctest logging")
# No solution pickles itself or takes part in building classes.
_NOT_SOLUTIONS: Final = words(
    "__reduce__ __reduce_ex__ __getstate__ __setstate__ _getstate __init_subclass__ __copy__"
)


def library_functions() -> Iterator[tuple[str, str]]:
    """Yield functions and methods of the standard library, each with the imports that it uses.

    Yields name and source of those with 2 to `MAX_LINES` lines whose imports, of the module and of
    their own, are all in the default allow-list.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    for module in sorted(LIBRARY):
        path = folder / (module.replace(".", "/") + ".py")
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        if path.exists():
            yield from _cut(module, path)


def package_functions(packages: Sequence[str] = PACKAGES) -> list[tuple[str, str]]:
    """Return functions of installed mathematics packages, in an order drawn by a fixed seed.

    Selected as in `library_functions`; those that import from their own package drop out, as no
    solution uses a package's internals.
    """
    found: list[tuple[str, str]] = []
    for package in packages:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            found += _folder(package, Path(folder))
    random.Random(0).shuffle(found)
    return found


def folder_functions(folder: Path) -> list[tuple[str, str]]:
    """Return at most `OTHER_FUNCTIONS` functions of the packages unpacked below ``folder``.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[tuple[str, str]] = []
    for inner in sorted(folder.iterdir()):
        found += _folder(inner.name, inner)
    random.Random(0).shuffle(found)
    return found[:OTHER_FUNCTIONS]


def _folder(package: str, folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.py")):
        if "test" not in str(path.relative_to(folder)):
            try:
                yield from _cut(f"{package}/{path.relative_to(folder)}", path)
            except (SyntaxError, UnicodeDecodeError):
                continue  # a template, or another version of Python


def _cut(module: str, path: Path) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    for name, node in _functions(tree):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if not 2 <= lines <= MAX_LINES or name.rpartition(".")[2] in _NOT_SOLUTIONS:
            continue
        if (used := _used(node, imports)) is not None:
            yield f"{module}.{name}", "\n".join([*used, "", ast.unparse(node)])


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _used(
    node: ast.FunctionDef, imports: Sequence[ast.Import | ast.ImportFrom]
) -> list[str] | None:
    """Return the import lines that a function needs; None if one is outside the allow-list."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    own = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
    needed = [
        statement
        for statement in imports
        if any((a.asname or a.name.partition(".")[0]) in names for a in statement.names)
    ]
    for statement in [*needed, *own]:
        modules = (
            ["." if statement.level else statement.module or ""]
            if isinstance(statement, ast.ImportFrom)
            else [alias.name for alias in statement.names]
        )
        roots = {module.partition(".")[0] for module in modules}
        if not roots <= IMPORTABLE - set(PACKAGES) or any(m.startswith("_") for m in modules):
            return None
    return [ast.unparse(statement) for statement in needed if statement not in own]
