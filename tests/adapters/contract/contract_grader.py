"""Reward functions in any trainer's convention."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tests.adapters.contract.contract_trainers import Trainer

REWARDS = {
    "fine": 1.0,
    "Hail": 5.0,
    "unseen": 2.0,
    "good": 3.0,
    "bad": -2.0,
    "Hail, bad": -1.0,
    "unseen, bad": -0.5,
}


def grader(
    trainer: Trainer,
    reward: Callable[[str], Any] = REWARDS.__getitem__,
    *,
    accepts: Iterable[str] | None = None,
    is_async: bool = False,
    answer: Callable[[list[Any]], Any] | None = None,
    name: str = "grade",
) -> Any:
    """A reward function in the trainer's convention that refuses arguments it does not name."""
    names = accepts or trainer.calls(["fine"])[0]
    signature = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    )
    shape = answer or (list if trainer.batch else lambda values: values[0])

    def grade(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return shape([reward(text) for text in trainer.texts_in(arguments)])

    async def grade_async(*args: Any, **kwargs: Any) -> Any:
        return grade(*args, **kwargs)

    made: Any = grade_async if is_async else grade
    made.__name__ = name
    made.__signature__ = signature
    return made
