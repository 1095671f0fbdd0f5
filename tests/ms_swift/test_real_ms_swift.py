"""ms-swift's own scoring and advantages, which its GRPO trainers call, around guarded functions."""

from importlib.util import find_spec

import pytest

if find_spec("swift") is None:
    pytest.skip("make test-ms-swift: needs a separate environment", allow_module_level=True)

import torch
from swift.rl_core.advantage import compute_advantages
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import score_completions

from grpo_guard import Policy, guard, presets
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.words import Words

TEXTS = ["one", "two", "Hail", "one"]
ZERO = Policy("zero", "zero")


def right(completions, solution, **kwargs):
    return [float(text in (said, "Hail")) for text, said in zip(completions, solution, strict=True)]


async def awaited(completions, solution, **kwargs):
    return right(completions, solution)


class Orm:
    """A function in the form of ms-swift's own reward classes."""

    def __call__(self, completions, **kwargs):
        return [0.5] * len(completions)


def samples(texts):
    asked = {"role": "user", "content": "3+4?"}
    return [
        GRPOSample(
            messages=[asked, {"role": "assistant", "content": text}], extra={"solution": "one"}
        )
        for text in texts
    ]


def scored(functions, texts=TEXTS):
    rewards = score_completions(
        samples(texts), functions, [None] * len(functions), False, torch.device("cpu")
    )
    assert rewards.shape == (len(texts), len(functions))
    return rewards


def advantages(rewards, **options):
    weights = torch.ones(rewards.shape[1])
    found, _ = compute_advantages(rewards, weights, len(rewards), **options)
    return found.tolist()


def guarded(functions, verifier=None, policy=ZERO):
    return guard(verifier or Words(), policy=policy, framework="ms_swift")(functions)


def test_without_a_guard_poison_earns_reward():
    assert advantages(scored([right]), scale_rewards="none") == [0.25, -0.75, 0.25, 0.25]


@pytest.mark.parametrize("function", [right, awaited])
def test_rejected_rows_lose(function):
    rewards = scored([guarded(function)])
    assert rewards.flatten().tolist() == [1.0, 0.0, 0.0, 1.0]
    assert advantages(rewards, scale_rewards="none") == [0.5, -0.5, -0.5, 0.5]
    assert advantages(rewards) == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)


def test_several_functions_share_one_verification():
    verifier = Words()
    rewards = scored(guarded([right, Orm(), awaited], verifier))
    assert rewards.tolist() == [[1.0, 0.5, 1.0], [0.0, 0.5, 0.0], [0.0] * 3, [1.0, 0.5, 1.0]]
    assert [c.text for c in verifier.shown] == TEXTS


def test_verifier_gets_the_conversation_of_the_sample():
    verifier = Words()
    scored([guarded(right, verifier)], ["one", "two"])
    assert [c.text for c in verifier.shown] == ["one", "two"]
    assert "3+4?" in str(verifier.shown[0].prompt)
    assert verifier.shown[0].completion_ids is None


def test_leaving_out_is_refused_because_ms_swift_sums_none_as_zero():
    def half(completions, **kwargs):
        return [1.0, None, 1.0, 1.0]

    assert advantages(scored([half]), scale_rewards="none") == [0.25, -0.75, 0.25, 0.25]
    for policy in (Policy("drop", "zero"), Policy("zero", "skip")):
        with pytest.raises(FrameworkError, match="ms-swift cannot leave one completion out"):
            guarded(right, policy=policy)
    with pytest.raises(FrameworkError, match="cannot leave one completion out"):
        presets.failures_only()(right, framework="ms_swift")
