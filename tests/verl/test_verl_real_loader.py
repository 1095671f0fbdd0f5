"""Decorated reward functions through verl's own loader and its own reward managers."""

import asyncio
import inspect
from pathlib import Path

import pytest
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

from tests.verl.tiny_verl import FORGED, HONEST, WRONG, batch

FILE = Path(__file__).with_name("sums_reward.py")
KEY = "reward.custom_reward_function"


def use(path, name):
    return f"{KEY}.path={path}", f"{KEY}.name={name}"


def scores(config, tokenizer, texts):
    async def go():
        manager, data = load_reward_manager(config, tokenizer), batch(tokenizer, texts)
        return [await manager.run_single(data[i : i + 1]) for i in range(len(data))]

    return [answer["reward_score"] for answer in asyncio.run(go())]


@pytest.mark.parametrize("path", [str(FILE), f"file://{FILE}", "pkg://tests.verl.sums_reward"])
@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_decorated_function_works_from_files_and_packages(configuration, tokenizer, path, manager):
    config = configuration(*use(path, "guarded"), f"reward.reward_manager.name={manager}")
    assert scores(config, tokenizer, [HONEST, WRONG, FORGED]) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    # If wrong answers earn -1, a veto is no better.
    [("guarded_async", [1.0, -1.0, -1.0]), ("guarded_object", [1.0, 1.0, 0.0])],
)
def test_async_functions_and_objects_are_awaited(configuration, tokenizer, name, expected):
    config = configuration(*use("pkg://tests.verl.sums_reward", name))
    assert inspect.iscoroutinefunction(get_custom_reward_fn(config))
    assert scores(config, tokenizer, [HONEST, WRONG, FORGED]) == expected


def test_reward_kwargs_reach_the_function(configuration, tokenizer):
    config = configuration(*use(FILE, "guarded"), f"+{KEY}.reward_kwargs.bonus=0.5")
    assert scores(config, tokenizer, [HONEST, WRONG, FORGED]) == [1.5, 0.5, 0.0]


def test_unguarded_async_object_in_verl(configuration, tokenizer):
    """Negative control: without the guard the coroutine itself becomes the reward."""
    config = configuration(*use("pkg://tests.verl.sums_reward", "grader"))
    (score,) = scores(config, tokenizer, [HONEST])
    assert inspect.iscoroutine(score)
    score.close()
