import pytest
from rule_verifiers_core import Says

from grpo_guard import FrameworkError, guard
from grpo_guard.framework import FRAMEWORKS, adapter_for


def trl(completions, **kwargs):
    return [1.0] * len(completions)


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0


def openrlhf(queries, prompts, labels):
    return {"rewards": 1.0}


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
    ],
)
def test_the_signature_gives_the_trainer_away(reward, adapter):
    assert type(adapter_for(reward)).__name__ == adapter


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_name_overrides_the_signature(name):
    assert name.replace("_", "") in type(adapter_for(lambda **kwargs: 1.0, name)).__name__.lower()


@pytest.mark.parametrize(
    ("reward", "framework", "message"),
    [
        (lambda x: x, None, r"cannot tell which trainer calls .* \(x\)\. Known .*trl: completions"),
        (lambda **kw: 1, None, r"cannot tell .* Say framework=\.\.\. to override"),
        (
            trl,
            "trll",
            "expected one of verl, openrlhf, areal, trl, ms_swift, slime, verifiers, got 'trll'; "
            "did you mean 'trl'",
        ),
        (trl, "swarm", "got 'swarm'$"),
        ([], None, "expected a function or a non-empty list, got an empty list"),
        ([trl, openrlhf], None, r"several frameworks in one list: \['openrlhf', 'trl'\]"),
        ("org/model", None, "reward: expected a callable, got 'org/model'"),
    ],
)
def test_what_is_not_recognised_is_an_error_at_decoration(reward, framework, message):
    with pytest.raises(FrameworkError, match=message):
        guard(Says(), framework=framework)(reward)
