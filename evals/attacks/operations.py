"""Replace operations in a program with calls to two-argument functions, in place.

The program is parsed but never run; everything that is not replaced stays exactly as it is.
"""

import ast
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MAX_CHARS: Final = 20_000
_SIGNS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_Edit = tuple[int, int, int, str]
"""(start, end, rank among edits at the same position, replacement text); positions are in bytes."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A program with calls to ``functions``, not imported; the last ends at character ``end``."""

    text: str
    functions: tuple[str, ...]
    end: int


def with_calls(
    program: str, functions: Mapping[str, str], rng: random.Random, *, share: float = 0.5
) -> Rewritten | None:
    """Replace a random subset of the operations + - * /, at least one, with calls.

    ``functions`` maps each sign to a function's name, and ``share`` is the probability of replacing
    each operation. Returns None if the program has no operations.
    """
    tree = parsed(program)
    found = list(_operations(tree)) if tree else []
    if not found:
        return None
    chosen = [node for node in found if rng.random() < share] or [rng.choice(found)]
    source = program.encode()
    edits = sorted(_edits(chosen, _line_starts(source), functions))
    parts, at = list[bytes](), 0
    for start, end, _, text in edits:
        parts += [source[at:start], text.encode()]
        at = end
    changed = b"".join(parts).decode()
    names = tuple(sorted({functions[_SIGNS[type(node.op)]] for node in chosen}))
    return Rewritten(changed + source[at:].decode(), names, len(changed))


def parsed(program: str) -> ast.Module | None:
    """Parse a program; None if it is not Python, is too long, or allows no import before it."""
    # Python's line numbers and ours might treat these characters differently.
    if len(program) > MAX_CHARS or any(mark in program for mark in "\r\f\0"):
        return None
    if "__future__" in program:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _operations(tree: ast.AST) -> Iterator[ast.BinOp]:
    """Yield the operations that can become calls in place, outer ones before inner ones."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.JoinedStr, ast.pattern)):
            continue  # positions in an f-string are unreliable; a pattern is not an expression
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS and _callable(node):
            yield node
        stack += ast.iter_child_nodes(node)


def _callable(node: ast.BinOp) -> bool:
    # As arguments, these operands would need their parentheses, which lie outside their position.
    kinds = (ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return not isinstance(node.left, kinds) and not isinstance(node.right, kinds)


def _line_starts(source: bytes) -> Sequence[int]:
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _edits(
    nodes: Sequence[ast.BinOp], lines: Sequence[int], functions: Mapping[str, str]
) -> Iterator[_Edit]:
    """Yield the edits around the nodes' operands, which are kept, as are any calls in them."""
    for rank, node in enumerate(nodes, 1):
        start, end = _place(node, lines)
        left, right = _place(node.left, lines), _place(node.right, lines)
        # If several operations begin at the same place, the outer one opens first and closes last.
        yield start, left[0], rank, f"{functions[_SIGNS[type(node.op)]]}("
        yield left[1], right[0], 0, ", "
        yield right[1], end, -rank, ")"


def _place(node: ast.expr, lines: Sequence[int]) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = lines[node.lineno - 1] + node.col_offset
    return start, lines[node.end_lineno - 1] + node.end_col_offset
