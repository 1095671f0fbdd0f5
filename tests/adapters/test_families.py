"""Adapters never import each other: a trainer's pins exclude the next one's."""

import ast
from pathlib import Path

import pytest

from grpo_guard.framework import FRAMEWORKS

ADAPTERS = Path(__file__).parents[2] / "adapters"
HEADS = {place.partition(":")[0].rpartition(".")[2] for place, _ in FRAMEWORKS.values()}
# One family is all files of one trainer: trl and trl_*; the rest is shared by all.
FAMILIES = {head for head in HEADS | {"prime_rl"} if head != "trl_ms_swift"}


def family(module):
    """The trainer that a module is for; None for what all may use."""
    return next((f for f in FAMILIES if module == f or module.startswith(f"{f}_")), None)


def imported(source):
    """Names of the adapter modules that a source imports, in functions as well."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if not node.level else f"grpo_guard.adapters.{name}" for name in names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {p[2] for p in parts if p[:2] == ["grpo_guard", "adapters"] and len(p) > 2}
    return found


def strangers(module, source):
    return sorted(m for m in imported(source) if family(m) not in (None, family(module)))


@pytest.mark.parametrize("path", sorted(ADAPTERS.glob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_imports_its_own_family_and_what_is_shared(path):
    assert strangers(path.stem, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from grpo_guard.adapters.trl import TRLAdapter",
        "from grpo_guard.adapters import trl_batch",
        "import grpo_guard.adapters.trl",
        "def f():\n    from grpo_guard.adapters.trl_batch import prompt_key",
    ],
)
def test_the_rule_finds_what_breaks_it(source):
    for module in ("verl", "slime", "reward_function"):
        assert strangers(module, source)
    assert strangers("trl_masks", source) == []
