"""Reward functions, and the keywords with which TRL calls them."""

import asyncio
import inspect
from types import SimpleNamespace

TEXTS = ["a", "Hail", "c"]


def call(texts=TEXTS, step=0, **columns):
    """Keywords as TRL passes them."""
    return {
        "prompts": ["p"] * len(texts),
        "completions": list(texts),
        "completion_ids": [[ord(c) for c in text] for text in texts],
        "trainer_state": SimpleNamespace(global_step=step),
        **columns,
    }


def ones(completions, **kwargs):
    return [1.0] * len(completions)


def twos(completions, **kwargs):
    return [2.0] * len(completions)


async def threes(completions, **kwargs):
    return [3.0] * len(completions)


class CallableObject:
    def __call__(self, completions, **kwargs):
        return [4.0] * len(completions)


class AsyncObject:
    async def __call__(self, completions, **kwargs):
        return [5.0] * len(completions)


def run(wrapped, **kwargs):
    result = wrapped(**kwargs)
    return asyncio.run(result) if inspect.isawaitable(result) else result
