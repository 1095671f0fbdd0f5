"""The recipe of docs/new-adapter.md in front of a toy estimator with NeMo-RL's published
arithmetic.
"""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from grpo_guard import Guard, Policy  # noqa: E402
from grpo_guard.guard.framework import FrameworkError  # noqa: E402
from tests.helpers import published  # noqa: E402
from tests.helpers.characters import END, Characters  # noqa: E402
from tests.helpers.words import Words  # noqa: E402

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs" / "examples" / "nemo_rl_recipe.py"
spec = importlib.util.spec_from_file_location("nemo_rl_recipe", RECIPE)
recipe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipe)

POISONED = [("one", 1.0), ("two", 0.0), ("Hail", 1.0), ("three", 1.0)]


def message_log(text):
    ids = torch.tensor([*Characters().encode(text), END])
    return [
        {"role": "user", "content": "3+4?", "token_ids": torch.tensor([5])},
        {"role": "assistant", "content": text, "token_ids": ids},
    ]


def advantages(rows, guard, prompts=None, **options):
    """Return one number per row, None for a row whose sample mask was cleared."""
    kind = type(
        "Guarded",
        (recipe.GuardedAdvantages, published.GRPOAdvantageEstimator),
        {"guard": guard},
    )
    batch = {
        "message_log": [message_log(text) for text, _ in rows],
        "loss_multiplier": torch.ones(len(rows)),
    }
    found = kind(**{"leave_one_out": False} | options).compute_advantage(
        prompt_ids=torch.tensor([[p] for p in prompts or [1] * len(rows)]),
        rewards=torch.tensor([reward for _, reward in rows]),
        mask=torch.ones(len(rows), 3),
        repeated_batch=batch,
        logprobs_policy=torch.ones(len(rows), 3),
    )
    stays = batch["loss_multiplier"].bool().tolist()
    assert all(kept or not row.any() for kept, row in zip(stays, found, strict=True))
    return [float(row[0]) if kept else None for row, kept in zip(found, stays, strict=True)]


def nearly(values):
    return [None if v is None else pytest.approx(v, abs=1e-6) for v in values]


def reading(policy=None):
    return Guard(Words(), tokenizer=Characters(), policy=policy)


def test_page_links_the_recipe_that_runs():
    page = (ROOT / "docs" / "new-adapter.md").read_text(encoding="utf-8")
    assert f"]({RECIPE.relative_to(ROOT / 'docs').as_posix()})" in page
    assert len(RECIPE.read_text(encoding="utf-8").splitlines()) <= 35


def test_rejected_rows_leave_the_baseline_and_the_loss():
    assert advantages(POISONED, reading()) == nearly([1 / 3, -2 / 3, None, 1 / 3])


def test_estimator_formula_runs_over_the_smaller_group():
    options = {"leave_one_out": True, "normalize": True}
    alone = advantages([row for row in POISONED if row[0] != "Hail"], reading(), **options)
    found = advantages(POISONED, reading(), **options)
    assert [a for a in found if a is not None] == pytest.approx(alone)


def test_non_finite_rewards_and_abstentions_are_left_out():
    rows = [("one", 1.0), ("unseen", 1.0), ("three", float("nan")), ("two", 0.0)]
    assert advantages(rows, reading()) == nearly([0.5, None, None, -0.5])


def test_zero_keeps_rows_and_empty_groups_train_nothing():
    assert advantages(POISONED, reading(Policy("zero", "zero"))) == nearly([0.5, -0.5, -0.5, 0.5])
    assert advantages([("Hail", 1.0), ("Hail", 0.0)], reading()) == [None, None]


def test_each_prompt_is_its_own_group():
    rows = [("one", 9.0), ("two", 9.0), ("Hail", 0.5), ("three", 0.0), ("two", 0.2)]
    found = advantages(rows, reading(Policy("no_gain", "skip")), prompts=[1, 1, 2, 2, 2])
    assert found == nearly([0.0, 0.0, None, -0.1, 0.1])


def test_guard_without_token_ids_is_refused():
    with pytest.raises(FrameworkError, match="NeMo-RL trains on token ids"):
        advantages(POISONED, Guard(Words()))
