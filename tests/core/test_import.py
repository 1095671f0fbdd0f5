"""Importing the package stays light; measured by what it loads, not by time."""

import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from grpo_guard import Guard

HEAVY = {
    "accelerate",
    "datasets",
    "openai",
    "pandas",
    "pydantic",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "typer",
    "verl",
    "vllm",
}


def loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import grpo_guard",
        "import grpo_guard; dir(grpo_guard); grpo_guard.Policy()",
        "from grpo_guard.adapters import ms_swift, slime, verifiers\n"
        "import grpo_guard.adapters.trl.reward, grpo_guard.adapters.verl.reward\n"
        "import grpo_guard.adapters.openrlhf.reward",
    ],
)
def test_import_loads_neither_torch_nor_a_trainer(statement):
    loaded = loaded_by(statement)
    assert "grpo_guard" in loaded
    assert loaded & HEAVY == set()


def test_import_loads_no_other_package():
    added = loaded_by("import grpo_guard") - loaded_by("pass") - set(sys.stdlib_module_names)
    assert {name for name in added if not name.startswith("_")} == {"grpo_guard"}


def test_no_import_cycles_even_lazy_ones():
    graph = grimp.build_graph("grpo_guard", cache_dir=None, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "grpo_guard.nodes.checkpoint" in imports[Guard.__module__]
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the cycle


def test_unknown_name_is_an_attribute_error():
    import grpo_guard

    with pytest.raises(AttributeError, match="has no attribute 'Gaurd'"):
        _ = grpo_guard.Gaurd
    assert set(grpo_guard.__all__) <= set(dir(grpo_guard)) | {"LogProbBoundVerifier"}


def test_the_version_is_that_of_the_project():
    import grpo_guard

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert grpo_guard.__version__ == project["version"]
