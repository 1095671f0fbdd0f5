"""At least 95 % of public names have a docstring."""

import ast
from pathlib import Path

import pytest

import grpo_guard
import grpo_guard.adapters
import grpo_guard.evals

LEAST = 0.95


def public(body, prefix):
    """List (name, has a docstring) for functions, classes and methods."""
    for node in body:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", ast.get_docstring(node) is not None
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


@pytest.mark.slow
def test_public_names_have_docstrings():
    places = {Path(m.__path__[0]) for m in (grpo_guard, grpo_guard.adapters, grpo_guard.evals)}
    found = {}
    for path in {path for place in places for path in place.rglob("*.py")}:
        if not path.name.startswith("_"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found[str(path)] = ast.get_docstring(tree) is not None
            found |= dict(public(tree.body, f"{path}: "))
    without = sorted(name for name, has in found.items() if not has)
    share = 1 - len(without) / len(found)
    print(f"{len(found) - len(without)} of {len(found)} public names: {share:.1%}")
    assert share >= LEAST, "\n".join(without)
