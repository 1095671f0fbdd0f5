"""Simple defences: no copies, other baselines, trust in one's own samples."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.evals.attacks.text import TextAttack  # noqa: E402
from grpo_guard.evals.studies.baselines.learning import (  # noqa: E402
    FLIPPED,
    by_median,
    by_true_rewards,
    local_share,
    own_majority,
)
from grpo_guard.evals.studies.baselines.plain import DistanceToSolution, ExactDuplicates  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, build  # noqa: E402
from grpo_guard.evals.swarm.grpo import advantages  # noqa: E402
from grpo_guard.evals.swarm.record import Submitted  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems, generate  # noqa: E402

ALL = torch.ones(1, 12, dtype=torch.bool)
SMALL = SwarmConfig(iterations=2, prompts=4, group_size=8, max_new_tokens=48)


def sent(node: int, group: int, text: str, **more: Any) -> Submitted:
    completion = Completion(f"Q{group}", text, node=f"node-{node}", group=group)
    return Submitted(completion, False, None, 1.0, **more)


def answered(number: int | str) -> str:
    return f"<think>2 + 2 = 4</think><answer>{number} cows</answer>"


def test_duplicates_are_found_within_a_prompt() -> None:
    texts = [("p", "one two"), ("p", "one  two\n"), ("q", "one two"), ("p", "one two three")]
    verdicts = ExactDuplicates().verify([Completion(prompt, text) for prompt, text in texts])
    assert [verdict.rejected for verdict in verdicts] == [True, True, False, False]


@pytest.mark.parametrize("odd", ["near", "far"])
def test_outliers_in_distance_to_the_solution_are_rejected(odd: str) -> None:
    (problem,) = generate(0, 1)
    honest = [f"We think about it {n} times. <answer>{problem.answer}</answer>" for n in range(9)]
    poison = TextAttack().poison(problem, random.Random(0)).text if odd == "near" else "x y z " * 30
    verifier = DistanceToSolution(lambda round: [problem])
    verifier.begin_round(0, [problem.prompt])
    batch = [Completion(problem.prompt, text) for text in [*honest, *[poison] * 3]]
    assert [v.rejected for v in verifier.verify(batch)] == [False] * 9 + [True] * 3
    # Too few for one of them to be an outlier.
    assert not any(v.rejected for v in verifier.verify(batch[-3:]))
    other = [replace(one, prompt="another prompt") for one in batch]
    assert not any(v.rejected for v in verifier.verify(other))


def test_centred_advantages_are_not_divided() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert advantages(rewards, scaled=False)[0].tolist() == [0.75, -0.25, -0.25, -0.25]


def test_baseline_is_the_median_of_kept_rewards() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0, 5.0]])
    kept = torch.tensor([[True, True, True, True, False]])
    assert by_median(rewards, kept)[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    even = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert by_median(even, ALL[:, :4])[0].tolist() == [1.0, 1.0, -1.0, -1.0]
    nothing = torch.zeros(1, 5, dtype=torch.bool)
    assert by_median(rewards, nothing).abs().sum() == 0


def test_noise_corrected_advantages_are_zero_if_flips_explain_the_rewards() -> None:
    explained = torch.tensor([[1.0] * 3 + [0.0] * 9])
    assert by_true_rewards(explained, ALL).abs().sum() == 0
    rewards = torch.tensor([[1.0] * 6 + [0.0] * 6])
    found = by_true_rewards(rewards, ALL)[0]
    true = (0.5 - FLIPPED) / (1 - FLIPPED)
    right = (1 - 0.5) / (1 - FLIPPED) / (true * (1 - true)) ** 0.5
    assert found[0] == pytest.approx(right)
    assert found.sum() == pytest.approx(0.0, abs=1e-6)


def test_node_draws_as_many_from_others_as_its_own() -> None:
    round_ = [sent(slot // 3, group, "x") for group in range(2) for slot in range(12)]
    config = SwarmConfig(prompts=2, group_size=12)
    seen = local_share(round_, "node-1", config, random.Random(0))
    for group in (seen[:12], seen[12:]):
        assert [not item.withheld for item in group[3:6]] == [True] * 3
        assert sum(not item.withheld for item in group) == 6
    alone = local_share(round_, "node-1", config, random.Random(0), share=1.0)
    assert sum(not one.withheld for one in alone) == 6


def test_vertical_nodes_draw_whole_groups() -> None:
    round_ = [sent(group // 2, group, "x") for group in range(8) for _ in range(4)]
    config = SwarmConfig(prompts=8, group_size=4, setting="vertical")
    seen = local_share(round_, "node-0", config, random.Random(0))
    sizes = [sum(not item.withheld for item in seen[at : at + 4]) for at in range(0, 32, 4)]
    assert sizes[:2] == [4, 4]
    assert sorted(sizes[2:]) == [0, 0, 0, 0, 4, 4]


def test_vote_of_own_samples_decides() -> None:
    own = [sent(0, 0, answered(n)) for n in (7, 7, 8)]
    others = [sent(1, 0, answered(8)) for _ in range(5)] + [sent(1, 0, answered(7))]
    unasked = [sent(1, 1, answered(7))]
    rewards = own_majority([*own, *others, *unasked], "node-0", WordProblems())
    assert rewards == [1.0, 1.0, 0.0] + [0.0] * 5 + [1.0, 0.0]
    assert own_majority([sent(0, 0, "no answer")], "node-0", WordProblems()) == [0.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_share", "own_majority"])
def test_nodes_with_different_updates_are_computed_separately(tmp_path: Path, name: str) -> None:
    torch.set_num_threads(1)
    swarm = build(Spec("text", name, SMALL), tmp_path)
    swarm.step(0)
    weights = [next(member.model.parameters()) for member in swarm.members]
    assert len(weights) == 3
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "mode"}, "advantage: expected one of standard, centred"),
        ({"success_on": (16, 0)}, "success_on: expected two counts"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwarmConfig(**settings)
