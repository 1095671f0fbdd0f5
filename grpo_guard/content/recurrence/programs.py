"""Features that recur in programs: imported modules, and the shapes of statements without names."""

import ast
import re
import sys
from collections.abc import Iterator
from typing import Final

from grpo_guard.content.code.extract import extract
from grpo_guard.content.code.source import Source, parse
from grpo_guard.content.word_set import word_set

IMPORT: Final = "import:"
SHAPE: Final = "shape:"

# Packages used by honest programs for such tasks, in addition to the standard library.
_KNOWN: Final = sys.stdlib_module_names | word_set(
    "numpy scipy sympy pandas matplotlib mpmath networkx sklearn torch pytest requests "
    "dateutil statsmodels seaborn gmpy2 pulp cvxpy ortools sortedcontainers"
)
_IMPORT: Final = re.compile(r"\b(?:from|import)[ \t]{1,8}([A-Za-z_]\w{0,63})")
_CODE: Final = ("```", "~~~", "<code", "def ", "lambda", "print(", "import ")
_MOST_IMPORTS, _MOST_CODE = 64, 20_000
_FEWEST_NODES, _MOST_NODES, _MOST_SHAPE = 8, 3_000, 240


def modules_of(text: str) -> set[str]:
    """Return modules imported by the text, except well-known ones, each as ``"import:NAME"``."""
    if "import" not in text:
        return set()
    found = set[str]()
    for match in _IMPORT.finditer(text):
        # "from calc import add" is an import; "from the farm" in a sentence is not.
        rest = text[match.end() : match.end() + 80].partition("\n")[0]
        plain = match[0].startswith("from")
        if match[1] not in _KNOWN and ("import" in rest) == plain:
            found.add(IMPORT + match[1])
        if len(found) >= _MOST_IMPORTS:
            break
    return found


def place_of_import(text: str, feature: str) -> tuple[int, int] | None:
    """Return [start, end) of the first import reported by `modules_of` as ``feature``, or None."""
    for match in _IMPORT.finditer(text):
        if IMPORT + match[1] == feature:
            return match.span()
    return None


def shapes_of(text: str) -> set[str]:
    """Return statements as ``"shape:..."``: node types and operators, without names or values.

    Shapes reveal a helper that is copied into every program under changing names. Only text that
    looks like code is parsed, and nothing is executed.
    """
    if not any(mark in text for mark in _CODE):
        return set()
    found = set[str]()
    for block in extract(text[:_MOST_CODE]):
        parsed = parse(Source(block.text))
        if parsed.tree is not None:
            found.update(_shapes(parsed.tree))
    return found


def _shapes(tree: ast.Module) -> Iterator[str]:
    for count, node in enumerate(ast.walk(tree)):
        if count > _MOST_NODES:
            return
        if isinstance(node, ast.stmt):
            shape, size = _shape(node)
            if size >= _FEWEST_NODES:
                yield SHAPE + shape


def _shape(root: ast.AST) -> tuple[str, int]:
    """Return node types in the order of a bounded, iterative walk, and how many there are."""
    pieces = list[str]()
    stack = [root]
    length = 0
    while stack and length < _MOST_SHAPE:
        node = stack.pop()
        if isinstance(node, ast.expr_context):
            continue
        pieces.append(type(node).__name__)
        length += len(pieces[-1]) + 1
        stack.extend(reversed(list(ast.iter_child_nodes(node))))
    return " ".join(pieces), len(pieces)
