"""Reward functions at module level: AReaL calls them in processes of its own."""

from grpo_guard import Guard, Policy
from tests.helpers.words import Words

RIGHT = {"one": 1.0, "two": 0.0, "three": 0.0, "Hail": 1.0}


def plain(prompt, completions, prompt_ids, completion_ids, **data):
    text = completions.removesuffix("</s>")
    if text == "gone":
        raise RuntimeError("the sandbox is gone")
    return RIGHT.get(text, float("nan"))


def reward(prompt, completions, prompt_ids, completion_ids, **data):
    """The guarded one is in its place below, as a decorator puts it."""
    return plain(prompt, completions, prompt_ids, completion_ids, **data)


reward = Guard(Words(), policy=Policy("zero", "zero"))(reward)
