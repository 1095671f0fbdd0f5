"""How a rejection changes a swarm's update under each rule."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.core.verdict import accept, reject  # noqa: E402
from grpo_guard.evals.swarm.config import SwarmConfig  # noqa: E402
from grpo_guard.evals.swarm.experiment import Spec, build  # noqa: E402
from grpo_guard.evals.swarm.record import Submitted  # noqa: E402
from grpo_guard.guard import Review  # noqa: E402
from grpo_guard.nodes.intake import STANDING_VERIFIER  # noqa: E402

SMALL = SwarmConfig(iterations=1, prompts=6, group_size=8, max_new_tokens=60)


def updated(
    folder: Path, rule: Any, rejected: Callable[[Submitted], bool] | None, by: str = "a"
) -> list[torch.Tensor]:
    """Return the weights after one update; None means without a guard."""
    torch.set_num_threads(1)
    swarm = build(Spec("text", "none", replace(SMALL, on_reject=rule)), folder)
    submitted, _ = swarm.exchange(0)
    size = SMALL.group_size
    right = [sum(s.reward for s in submitted[i : i + size]) for i in range(0, len(submitted), size)]
    assert any(0 < of_group < size for of_group in right)
    review = None
    if rejected is not None:
        # Only if a right completion remains to compare with.
        said = [rejected(s) and right[i // size] > 0 for i, s in enumerate(submitted)]
        review = Review([reject(by) if out else accept(by) for out in said], {})
        assert any(said)
    swarm.members[0].update(0, submitted, review)
    return list(swarm.model.parameters())


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def wrong(item: Submitted) -> bool:
    return item.reward == 0


def poison(item: Submitted) -> bool:
    assert item.reward == 1 or not item.poisoned
    return item.poisoned


@pytest.mark.slow
def test_no_gain_lets_wrong_rejected_rows_lose(tmp_path: Path) -> None:
    unguarded = updated(tmp_path, "drop", None)
    assert same(updated(tmp_path, "no_gain", wrong), unguarded)
    assert not same(updated(tmp_path, "drop", wrong), unguarded)


@pytest.mark.slow
def test_no_gain_leaves_out_right_poison_like_drop(tmp_path: Path) -> None:
    dropped = updated(tmp_path, "drop", poison)
    assert same(updated(tmp_path, "no_gain", poison), dropped)
    assert not same(updated(tmp_path, "zero", poison), dropped)


@pytest.mark.slow
def test_no_gain_leaves_out_losing_rows_of_excluded_nodes(tmp_path: Path) -> None:
    """An attack: right working before wrong answers, to have it unlearnt."""
    dropped = updated(tmp_path, "drop", wrong, STANDING_VERIFIER)
    assert same(updated(tmp_path, "no_gain", wrong, STANDING_VERIFIER), dropped)
    assert not same(updated(tmp_path, "no_gain", wrong), dropped)
