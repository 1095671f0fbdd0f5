"""If a reward function sees less than its group, "no_gain" is refused at decoration."""

import pytest

from grpo_guard import Policy, guard
from grpo_guard.adapters.verl.settings import policy_for
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import NoWord


def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0


def of_openrlhf(queries, prompts, labels):
    return [1.0]


async def of_slime(args, sample, **kwargs):
    return 1.0


def of_slimes_groups(args, samples, **kwargs):
    return [1.0]


def test_verl_manager_may_miss_late_siblings():
    with pytest.raises(FrameworkError, match='choose on_reject="drop"'):
        policy_for("grpo", Policy(on_reject="no_gain"), hooked=False)


@pytest.mark.parametrize(
    ("function", "framework"),
    [
        (of_verl, "verl"), (of_openrlhf, "openrlhf"), (of_slime, "slime"),
        (of_slimes_groups, "slime"),
    ],
)  # fmt: skip
def test_no_gain_is_refused_without_the_whole_group(function, framework):
    policy = Policy(on_reject="no_gain", on_abstain="zero")
    with pytest.raises(FrameworkError, match='on_reject="no_gain"'):
        guard(NoWord(), policy=policy, framework=framework)(function)
