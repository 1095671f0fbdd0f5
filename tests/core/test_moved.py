"""Importing a name that 0.1.0 documented gives an error with its new location."""

import importlib
import importlib.util
import pickle
import re
import sys
from pathlib import Path

import pytest

import grpo_guard
from grpo_guard import presets
from grpo_guard.core import moved
from grpo_guard.core.completion import Completion
from grpo_guard.core.moved import (
    _PLACES,
    FROM_THE_TOP,
    METHODS,
    MOVED,
    RELOCATED,
    REMOVED,
    place_of,
)
from grpo_guard.nodes.identity.ring import KeyRing

COMPLETION = Completion("2 + 2?", "4")
DOCUMENTED = {
    "from grpo_guard.ledger.ledger import EvidenceLedger": "ledger.ledger is nodes.ledger",
    "import grpo_guard.ledger.ledger": "ledger.ledger is nodes.ledger",
    "from grpo_guard.adapters.trl_batch import completions_from": "completions_from is rows_from",
    "from grpo_guard.adapters.openrlhf import completions_from": "openrlhf.reward.rows_from",
    "from grpo_guard.adapters.verl import completion_from": "verl.reward.row_from",
    "from grpo_guard.adapters import trl_batch": "completions_from is rows_from",
}


@pytest.mark.parametrize("statement", DOCUMENTED)
def test_error_names_the_new_location(statement):
    with pytest.raises(ImportError, match=re.escape(DOCUMENTED[statement])) as caught:
        exec(statement, {})  # noqa: S102  # of the list above
    assert " is now grpo_guard." in str(caught.value)


@pytest.mark.parametrize("name", MOVED)
def test_new_location_exists_and_the_old_name_does_not(name):
    now = re.split("[:;]", MOVED[name])[0]
    spec = None
    try:
        spec = importlib.util.find_spec(now)
    except ModuleNotFoundError:  # the name of a module
        module, _, attribute = now.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute))
    else:
        assert spec is not None
    with pytest.raises(ImportError, match=" is now "):
        importlib.import_module(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grpo_guard.adapters.nemo_rl", r"docs/new-adapter\.md"),
        ("grpo_guard.FrequentFindings", r'set severity=\{KIND: "count"\}'),
    ],
)
def test_removed_name_points_to_its_remedy(name, said):
    assert name in REMOVED
    package, _, last = name.rpartition(".")
    for import_it in (f"import {name}", f"from {package} import {last}"):
        with pytest.raises(ImportError, match=f"was removed.*{said}"):
            exec(import_it, {})  # noqa: S102  # of the list above


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("from grpo_guard import RemoteVerifier", "from grpo_guard.server.client.verifier import"),
        ("from grpo_guard.guard import GraderFailures", "from grpo_guard.guard.graders import"),
        ("from grpo_guard import ExclusionVerifier", "grpo_guard.nodes.exclusion_verifier import"),
        ("from grpo_guard.content.length import LengthVerifier", "content.length.verifier import"),
        ("from grpo_guard.nodes.recurrence import RecurrenceVerifier", "from grpo_guard import"),
        ("from grpo_guard.identity import KeyRing", "from grpo_guard.nodes.identity.ring import"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_name_in_the_wrong_package_says_where_it_is(statement, said):
    with pytest.raises(ImportError, match=re.escape(said)) as caught:
        exec(statement, {})  # noqa: S102  # of the list above
    exec(str(caught.value).partition(": ")[2], {})  # noqa: S102  # the import that it names


def test_missing_attribute_of_the_package_says_where_it_is():
    with pytest.raises(AttributeError, match=r"from grpo_guard\.nodes\.store import NodeStore$"):
        _ = grpo_guard.NodeStore
    with pytest.raises(AttributeError, match="no attribute 'Polcy'; did you mean 'Policy'"):
        _ = grpo_guard.Polcy


def test_every_place_exists():
    for folder, places in _PLACES.items():
        for place in places.split():
            module, _, name = place.rpartition(":")
            assert place_of(name) == f"grpo_guard.{folder}.{module}"
            assert importlib.util.find_spec(f"grpo_guard.{folder}.{module}") is not None, place
            source = importlib.util.find_spec(f"grpo_guard.{folder}.{module}").origin
            assert f"class {name}" in Path(source).read_text(encoding="utf-8"), place


def test_classes_in_the_documentation_have_a_place():
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *root.joinpath("docs").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    kinds = "Verifier|Failures|Store|Ring|Key|Scorer|Contract"
    named = set(re.findall(rf"`([A-Z]\w+(?:{kinds}))\b", text))
    assert {n for n in named if place_of(n, grpo_guard.__all__) is None} == set()


@pytest.mark.parametrize("name", RELOCATED)
def test_relocated_module_is_the_same_object_under_its_old_name(name):
    now = importlib.import_module(RELOCATED[name])
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{name} is now {RELOCATED[name]}")):
        old = importlib.import_module(name)
    assert old is now or old.__path__ == []
    for shown in (n for n in dir(now) if not n.startswith("_")):
        assert getattr(old, shown) is getattr(now, shown)
    assert now.__spec__.name == RELOCATED[name]


def test_relocated_package_finds_its_modules_and_no_others(monkeypatch):
    ring = KeyRing.__module__
    package = ring.removesuffix(".ring")
    then = {"grpo_guard.who": package, "grpo_guard.what": Completion.__module__}
    monkeypatch.setattr(moved, "RELOCATED", then)
    with pytest.warns(DeprecationWarning, match=re.escape(f"who.ring is now {ring}")):
        old = importlib.import_module("grpo_guard.who.ring")
    assert old is sys.modules[ring]
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'grpo_guard\.who\.never'"):
        importlib.import_module("grpo_guard.who.never")
    pickled = pickle.dumps(Completion("2 + 2?", "4"), protocol=0)
    before = pickled.replace(Completion.__module__.encode(), b"grpo_guard.what")
    assert before != pickled
    with pytest.warns(DeprecationWarning, match="what is now"):
        again = pickle.loads(before)
    assert type(again) is Completion
    assert again.text == "4"


def test_unknown_names_raise_the_usual_error():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'grpo_guard\.never'"):
        importlib.import_module("grpo_guard.never")
    with pytest.raises(ImportError, match="cannot import name 'never'"):
        exec("from grpo_guard.adapters.openrlhf import never", {})  # noqa: S102
    assert importlib.util.find_spec("grpo_guard.adapters.never") is None
    assert grpo_guard.__name__ == "grpo_guard"


@pytest.mark.parametrize("name", FROM_THE_TOP)
def test_deprecated_top_level_name_works_and_warns(name):
    module, _, now = FROM_THE_TOP[name].rpartition(".")
    with pytest.warns(DeprecationWarning, match=re.escape(f"{name} is now {FROM_THE_TOP[name]}")):
        found = getattr(grpo_guard, name)
    assert found is getattr(importlib.import_module(module), now)
    assert name not in grpo_guard.__all__


@pytest.mark.parametrize("name", METHODS)
def test_renamed_method_error_names_the_new_one(name):
    owner, _, method = name.partition(".")
    made = {one.__class__.__name__: one for one in (presets.different_weights(), COMPLETION)}[owner]
    with pytest.raises(AttributeError, match=f"{method}.*now '{METHODS[name]}'"):
        getattr(made, method)
    assert hasattr(made, METHODS[name])


def test_every_top_level_name_exists():
    assert len(grpo_guard.__all__) < 31
    for name in grpo_guard.__all__:
        assert getattr(grpo_guard, name) is not None
