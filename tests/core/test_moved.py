"""Whoever imports a name that 0.1.0 documented reads where it is now."""

import importlib
import importlib.util
import pickle
import re
import sys

import pytest

import grpo_guard
from grpo_guard import moved
from grpo_guard.completion import Completion
from grpo_guard.identity.ring import KeyRing
from grpo_guard.moved import FROM_THE_TOP, METHODS, MOVED, RELOCATED, REMOVED

DOCUMENTED = {
    "from grpo_guard.ledger.ledger import EvidenceLedger": "ledger.ledger is nodes.ledger",
    "import grpo_guard.ledger.ledger": "ledger.ledger is nodes.ledger",
    "from grpo_guard.adapters.trl_batch import completions_from": "completions_from is rows_from",
    "from grpo_guard.adapters.openrlhf import completions_from": "openrlhf.reward.rows_from",
    "from grpo_guard.adapters.verl import completion_from": "verl.reward.row_from",
    "from grpo_guard.adapters import trl_batch": "completions_from is rows_from",
}


@pytest.mark.parametrize("statement", DOCUMENTED)
def test_the_error_says_where_it_went(statement):
    with pytest.raises(ImportError, match=re.escape(DOCUMENTED[statement])) as caught:
        exec(statement, {})  # noqa: S102  # of the list above
    assert " is now grpo_guard." in str(caught.value)


@pytest.mark.parametrize("name", MOVED)
def test_what_is_named_in_its_place_is_there_and_the_old_name_is_not(name):
    now = re.split("[:;]", MOVED[name])[0]
    spec = None
    try:
        spec = importlib.util.find_spec(now)
    except ModuleNotFoundError:  # a name of a module
        module, _, attribute = now.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute))
    else:
        assert spec is not None
    with pytest.raises(ImportError, match=" is now "):
        importlib.import_module(name)


@pytest.mark.parametrize("name", REMOVED)
def test_what_was_removed_says_where_its_recipe_is(name):
    for import_it in (f"import {name}", f"from grpo_guard.adapters import {name.split('.')[-1]}"):
        with pytest.raises(ImportError, match=r"was removed.*docs/new-adapter\.md"):
            exec(import_it, {})  # noqa: S102  # of the list above


@pytest.mark.parametrize("name", RELOCATED)
def test_a_module_that_moved_is_the_same_module_under_its_old_name(name):
    now = importlib.import_module(RELOCATED[name])
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{name} is now {RELOCATED[name]}")):
        old = importlib.import_module(name)
    assert old is now or old.__path__ == []
    for shown in (n for n in dir(now) if not n.startswith("_")):
        assert getattr(old, shown) is getattr(now, shown)
    assert now.__spec__.name == RELOCATED[name]


def test_what_is_inside_a_package_that_moved_is_found_and_what_never_was_is_not(monkeypatch):
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


def test_other_names_are_not_there_as_before():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'grpo_guard\.never'"):
        importlib.import_module("grpo_guard.never")
    with pytest.raises(ImportError, match="cannot import name 'never'"):
        exec("from grpo_guard.adapters.openrlhf import never", {})  # noqa: S102
    assert importlib.util.find_spec("grpo_guard.adapters.never") is None
    assert grpo_guard.__name__ == "grpo_guard"


@pytest.mark.parametrize("name", FROM_THE_TOP)
def test_a_name_that_left_the_top_still_works_there_and_says_where_it_is(name):
    module, _, now = FROM_THE_TOP[name].rpartition(".")
    with pytest.warns(DeprecationWarning, match=re.escape(f"{name} is now {FROM_THE_TOP[name]}")):
        found = getattr(grpo_guard, name)
    assert found is getattr(importlib.import_module(module), now)
    assert name not in grpo_guard.__all__


@pytest.mark.parametrize("name", METHODS)
def test_a_renamed_method_is_an_attribute_error_that_names_the_new_one(name):
    owner, _, method = name.partition(".")
    made = grpo_guard.presets.different_weights()
    assert type(made).__name__ == owner
    with pytest.raises(AttributeError, match=f"{method}.*now '{METHODS[name]}'"):
        getattr(made, method)
    assert callable(getattr(made, METHODS[name]))


def test_every_name_at_the_top_is_there():
    assert len(grpo_guard.__all__) < 31
    for name in grpo_guard.__all__:
        assert getattr(grpo_guard, name) is not None
