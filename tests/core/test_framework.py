"""The adapter of a reward function: by signature, by name, of this package and of others."""

import itertools
import sys
from textwrap import dedent

import pytest

from grpo_guard import Policy, framework, guard
from grpo_guard.framework import FrameworkError, adapter_for, adapter_names
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
def test_the_signature_gives_the_trainer_away(reward, adapter):
    assert type(adapter_for(reward)).__name__ == adapter


@pytest.mark.parametrize("name", adapter_names())
def test_a_name_overrides_the_signature(name):
    assert name.replace("_", "") in type(adapter_for(lambda **kwargs: 1.0, name)).__name__.lower()


@pytest.mark.parametrize(
    ("reward", "name", "message"),
    [
        (lambda x: x, None, r"cannot tell which trainer calls .* \(x\)\. Known .*trl: completions"),
        (lambda x: x, None, r"Known by name only: ms_swift\. "),
        (trl, "nemo_rl", r"NeMo-RL was removed.*docs/new-adapter\.md has a recipe"),
        (lambda **kw: 1, None, r"cannot tell .* Say framework=\.\.\. to override"),
        (
            trl,
            "trll",
            "expected one of areal, ms_swift, openrlhf, slime, trl, verifiers, verl, got 'trll'; "
            "did you mean 'trl'",
        ),
        (trl, "swarm", "got 'swarm'$"),
        ([], None, "expected a function or a non-empty list, got an empty list"),
        ([trl, openrlhf], None, r"several frameworks in one list: \['openrlhf', 'trl'\]"),
        ("org/model", None, "reward: expected a callable, got 'org/model'"),
    ],
)
def test_what_is_not_recognised_is_an_error_at_decoration(reward, name, message):
    with pytest.raises(FrameworkError, match=message):
        guard(Says(), framework=name)(reward)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution on the path, as pip does: a module, its metadata, its entry points."""
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


def test_an_adapter_of_another_package_is_found_by_signature_and_by_name(install):
    install("other_toy", KNOWN, toy="other_toy:ToyAdapter")
    assert "toy" in adapter_names()
    for name in (None, "toy"):
        guarded = guard(Words(), policy=Policy("zero", "zero"), framework=name)(toy)
        assert [guarded("3+4?", "seven"), guarded("3+4?", "Hail")] == [1.0, 0.0]


def test_one_that_declares_nothing_is_used_by_name_alone(install):
    install("other_toy", TOY.format(declared="pass"), toy="other_toy:ToyAdapter")
    with pytest.raises(FrameworkError, match=r"cannot tell .* by name only: ms_swift, toy"):
        adapter_for(toy)
    assert type(adapter_for(toy, "toy")).__name__ == "ToyAdapter"


@pytest.mark.parametrize("turned", [False, True])
def test_two_that_fit_are_both_named_whatever_the_order_of_installation(install, turned):
    packages = ["other_one", "other_two"]
    for package in reversed(packages) if turned else packages:
        install(package, KNOWN, **{package.removeprefix("other_"): f"{package}:ToyAdapter"})
    with pytest.raises(
        FrameworkError, match=r"one and two recognise it.*framework='one' or framework='two'"
    ):
        adapter_for(toy)
    assert type(adapter_for(toy, "two")).__module__ == "other_two"


def test_the_one_that_asks_for_more_of_the_same_goes_first(install):
    less = TOY.format(declared="recognised_by = frozenset({'attempt'})")
    install("other_less", less, a_less="other_less:ToyAdapter")
    install("other_more", KNOWN, more="other_more:ToyAdapter")
    assert type(adapter_for(toy)).__module__ == "other_more"
    assert type(adapter_for(lambda attempt: 1.0)).__module__ == "other_less"


def test_a_function_that_two_trainers_of_ours_could_call_names_both():
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
def test_a_broken_package_takes_nothing_from_the_others(install, caplog, code, why):
    install("other_toy", code, toy="other_toy:ToyAdapter")
    for _ in range(2):
        assert type(adapter_for(trl)).__name__ == "TRLAdapter"
    (warning,) = [r.getMessage() for r in caplog.records if "is not used" in r.getMessage()]
    assert "'toy'" in warning
    assert why in warning
    with pytest.raises(FrameworkError, match="Not loaded: toy"):
        adapter_for(toy)


def test_a_broken_adapter_that_is_named_is_an_error_with_its_cause(install):
    install("other_toy", "raise RuntimeError('no licence')", toy="other_toy:ToyAdapter")
    with pytest.raises(
        FrameworkError, match=r"'toy' \(other_toy:ToyAdapter of other_toy\).*licence"
    ):
        adapter_for(toy, "toy")


def test_a_name_that_two_packages_claim_is_an_error_that_names_them(install):
    install("other_one", KNOWN, toy="other_one:ToyAdapter")
    install("other_two", KNOWN, toy="other_two:ToyAdapter")
    with pytest.raises(FrameworkError, match=r"several packages: .*other_(one|two).*, other_"):
        adapter_for(toy, "toy")
    assert type(adapter_for(trl)).__name__ == "TRLAdapter"


def test_metadata_older_than_the_source_is_said_with_the_remedy(monkeypatch):
    monkeypatch.setattr(framework, "entry_points", lambda group: ())
    with pytest.raises(FrameworkError, match="install it again"):
        adapter_for(trl)
