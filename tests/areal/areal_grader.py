"""Reward functions at module level, because AReaL calls them in its own processes."""

from grpo_guard import Guard, Policy
from tests.helpers.words import Words

RIGHT = {"one": 1.0, "two": 0.0, "three": 0.0, "Hail": 1.0}


def plain(prompt, completions, prompt_ids, completion_ids, **data):
    text = completions.removesuffix("</s>")
    if text == "gone":
        raise RuntimeError("the sandbox is gone")
    return RIGHT.get(text, float("nan"))


def reward(prompt, completions, prompt_ids, completion_ids, **data):
    """The guarded function replaces it below, as a decorator would."""
    return plain(prompt, completions, prompt_ids, completion_ids, **data)


reward = Guard(Words(), policy=Policy("zero", "zero"))(reward)
