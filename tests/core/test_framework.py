"""Choosing the adapter of a reward function: by signature, by name, built-in or third-party."""

import itertools
import sys
from textwrap import dedent

import pytest

from grpo_guard import Policy, guard
from grpo_guard.guard import framework
from grpo_guard.guard.framework import FrameworkError, adapter_for, adapter_names
from tests.core.rule_verifiers_core import Says
from tests.helpers.words import Words


def trl(completions, **kwargs):
    return [1.0] * len(completions)


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0


def openrlhf(queries, prompts, labels):
    return {"rewards": 1.0}


def areal(prompt, completions, prompt_ids, completion_ids, **data):
    return 1.0


class Object:
    def __call__(self, prompts, completions):
        return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "adapter"),
    [
        (trl, "TRLAdapter"),
        (Object(), "TRLAdapter"),
        ([trl, Object()], "TRLAdapter"),
        (verl, "VerlAdapter"),
        (openrlhf, "OpenRLHFAdapter"),
        (areal, "ArealAdapter"),
    ],
)
def test_trainer_is_recognised_by_signature(reward, adapter):
    assert type(adapter_for(reward)).__name__ == adapter


@pytest.mark.parametrize("name", adapter_names())
def test_framework_name_overrides_the_signature(name):
    assert name.replace("_", "") in type(adapter_for(lambda **kwargs: 1.0, name)).__name__.lower()


@pytest.mark.parametrize(
    ("reward", "name", "message"),
    [
        (lambda x: x, None, r"cannot tell which trainer calls .* \(x\)\. Known .*trl: completions"),
        (lambda x: x, None, r"Known by name only: ms_swift\. "),
        (trl, "nemo_rl", r"NeMo-RL was removed.*docs/new-adapter\.md has a recipe"),
        (lambda **kw: 1, None, r"cannot tell .* Set framework=\.\.\. to override"),
        (
            trl,
            "trll",
            f"expected one of {', '.join(adapter_names())}, got 'trll'; did you mean 'trl'",
        ),
        (trl, "swarm", "got 'swarm'$"),
        ([], None, "expected a function or a non-empty list, got an empty list"),
        ([trl, openrlhf], None, r"several frameworks in one list: \['openrlhf', 'trl'\]"),
        ("org/model", None, "reward: expected a callable, got 'org/model'"),
    ],
)
def test_unknown_signature_is_an_error_at_decoration(reward, name, message):
    with pytest.raises(FrameworkError, match=message):
        guard(Says(), framework=name)(reward)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on the path, as pip does: a module, its metadata, its entry points."""
    numbers = itertools.count()

    def install(package, code, **adapters):
        folder = tmp_path / f"{next(numbers)}-{package}"
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{package}.py").write_text(dedent(code), encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in adapters.items()]
        (info / "entry_points.txt").write_text("\n".join(["[grpo_guard.adapters]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, package, raising=False)

    monkeypatch.setattr(framework, "_warned", set())
    yield install
    for name in [name for name in sys.modules if name.startswith("other_")]:
        del sys.modules[name]


TOY = """
    class ToyAdapter:
        {declared}

        def wrap(self, reward, guard):
            from grpo_guard.adapters.received import received, review

            def guarded(question, attempt):
                found = review(guard, [received(question, attempt)])
                return guard.settle([reward(question, attempt)], found)[0]

            return guarded
    """
KNOWN = TOY.format(declared="recognised_by = frozenset({'question', 'attempt'})")


def toy(question, attempt):
    return 1.0


def test_third_party_adapter_is_found_by_signature_and_name(install):
    install("other_toy", KNOWN, toy="other_toy:ToyAdapter")
    assert "toy" in adapter_names()
    for name in (None, "toy"):
        guarded = guard(Words(), policy=Policy("zero", "zero"), framework=name)(toy)
        assert [guarded("3+4?", "seven"), guarded("3+4?", "Hail")] == [1.0, 0.0]


def test_adapter_without_a_declaration_is_found_by_name_only(install):
    install("other_toy", TOY.format(declared="pass"), toy="other_toy:ToyAdapter")
    with pytest.raises(FrameworkError, match=r"cannot tell .* by name only: ms_swift, toy"):
        adapter_for(toy)
    assert type(adapter_for(toy, "toy")).__name__ == "ToyAdapter"


@pytest.mark.parametrize("turned", [False, True])
def test_ambiguous_signature_names_both_adapters(install, turned):
    packages = ["other_one", "other_two"]
    for package in reversed(packages) if turned else packages:
        install(package, KNOWN, **{package.removeprefix("other_"): f"{package}:ToyAdapter"})
    with pytest.raises(
        FrameworkError, match=r"one and two recognise it.*framework='one' or framework='two'"
    ):
        adapter_for(toy)
    assert type(adapter_for(toy, "two")).__module__ == "other_two"


def test_more_specific_adapter_wins(install):
    less = TOY.format(declared="recognised_by = frozenset({'attempt'})")
    install("other_less", less, a_less="other_less:ToyAdapter")
    install("other_more", KNOWN, more="other_more:ToyAdapter")
    assert type(adapter_for(toy)).__module__ == "other_more"
    assert type(adapter_for(lambda attempt: 1.0)).__module__ == "other_less"


def test_signature_of_two_builtin_trainers_names_both():
    with pytest.raises(FrameworkError, match="openrlhf and trl recognise it"):
        adapter_for(lambda queries, prompts, labels, completions: 1.0)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import not_installed_anywhere", "ModuleNotFoundError"),
        ("other = 1", "AttributeError"),
        (TOY.format(declared="recognised_by = 'attempt'"), "TypeError: recognised_by: expected"),
    ],
)
def test_broken_package_does_not_affect_the_others(install, caplog, code, why):
    install("other_toy", code, toy="other_toy:ToyAdapter")
    for _ in range(2):
        assert type(adapter_for(trl)).__name__ == "TRLAdapter"
    (warning,) = [r.getMessage() for r in caplog.records if "is not used" in r.getMessage()]
    assert "'toy'" in warning
    assert why in warning
    with pytest.raises(FrameworkError, match="Not loaded: toy"):
        adapter_for(toy)


def test_broken_adapter_by_name_is_an_error_with_its_cause(install):
    install("other_toy", "raise RuntimeError('no licence')", toy="other_toy:ToyAdapter")
    with pytest.raises(
        FrameworkError, match=r"'toy' \(other_toy:ToyAdapter of other_toy\).*licence"
    ):
        adapter_for(toy, "toy")


def test_name_claimed_by_two_packages_is_an_error_naming_both(install):
    install("other_one", KNOWN, toy="other_one:ToyAdapter")
    install("other_two", KNOWN, toy="other_two:ToyAdapter")
    with pytest.raises(FrameworkError, match=r"several packages: .*other_(one|two).*, other_"):
        adapter_for(toy, "toy")
    assert type(adapter_for(trl)).__name__ == "TRLAdapter"


def test_stale_metadata_is_reported_with_the_remedy(monkeypatch):
    monkeypatch.setattr(framework, "entry_points", lambda group: ())
    with pytest.raises(FrameworkError, match="install it again"):
        adapter_for(trl)
