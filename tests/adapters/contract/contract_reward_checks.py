"""Contract checks on the reward function's side: how it is called, how its answer is used."""

import asyncio
import copy
import functools
import inspect
import math
import time
from typing import Any

import numpy as np
import pytest
import torch

from grpo_guard import AbstainError
from grpo_guard.guard.framework import FrameworkError
from tests.adapters.contract.contract_grader import grader
from tests.adapters.contract.contract_trainers import Trainer, Words


class AsyncGrader:
    """An object with an async ``__call__``, which some trainers mistake for a sync function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__signature__ = inspect.signature(function)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self.function(*args, **kwargs)


def async_stays_async_and_sync_stays_sync(trainer: Trainer) -> None:
    assert not inspect.iscoroutinefunction(trainer.wrap(grader(trainer)))
    function = grader(trainer, is_async=True)
    for reward in (function, AsyncGrader(function), functools.partial(function)):
        if not trainer.awaits:
            with pytest.raises(FrameworkError, match="does not await"):
                trainer.wrap(reward)
            continue
        guarded = trainer.wrap(reward)
        assert inspect.iscoroutinefunction(guarded)
        assert trainer.rewards(guarded, ["fine", "Hail", "good"]) == [1.0, 0.0, 3.0]


def concurrent_async_calls_do_not_mix(trainer: Trainer) -> None:
    """Awaited concurrently, as agent loops do, with one call cancelled halfway."""
    if not trainer.awaits:
        return
    texts = [f"{'Hail' if i % 3 == 0 else 'fine'} {i + 1}" for i in range(24)]
    guarded = trainer.wrap(
        grader(trainer, lambda text: float(text.split()[-1]), is_async=True), Slow()
    )

    async def side_by_side() -> list[Any]:
        ticks = 0
        calls = [
            asyncio.ensure_future(guarded(**arguments))
            for text in texts
            for arguments in trainer.calls([text])
        ]
        await asyncio.sleep(0)
        calls[5].cancel()
        while not all(call.done() for call in calls):
            await asyncio.sleep(0.001)
            ticks += 1
        assert ticks > 1  # the event loop kept running while the verifier worked
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(side_by_side())
    assert isinstance(answers[5], asyncio.CancelledError)
    for i, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        if i != 5:
            assert trainer.values(answer) == [0.0 if "Hail" in text else float(i + 1)]


class Slow(Words):
    def verify(self, batch: Any) -> Any:
        time.sleep(0.05)  # long enough for two turns of the loop on a busy machine
        return super().verify(batch)


def exception_of_the_reward_function_propagates_unchanged(trainer: Trainer) -> None:
    errors = (ValueError("x", 3), KeyError("k"), AbstainError("its own"), FrameworkError("its own"))
    for error in (*errors, TimeoutError(), KeyboardInterrupt()):
        for is_async in (False, True) if trainer.awaits else (False,):

            def fail(text: str, error: BaseException = error) -> float:
                raise error

            guarded = trainer.wrap(grader(trainer, fail, is_async=is_async))
            with pytest.raises(type(error)) as caught:
                trainer.rewards(guarded, ["fine"])
            assert caught.value is error
            assert error.__cause__ is None
            assert not getattr(error, "__notes__", None)


def reward_function_gets_its_inputs_unchanged(trainer: Trainer) -> None:
    texts = ["fine", "Hail"]
    for arguments in trainer.calls(texts):
        before = copy.deepcopy({n: v for n, v in arguments.items() if not callable(v)})
        seen: dict[str, Any] = {}

        def reward(*args: Any, seen: Any = seen, names: Any = tuple(arguments), **kw: Any) -> Any:
            seen |= dict(zip(names, args, strict=False)) | kw
            return [1.0] * len(texts) if trainer.batch else 1.0

        reward.__signature__ = inspect.signature(grader(trainer))  # type: ignore[attr-defined]
        trainer.call(trainer.wrap(reward), arguments)
        assert seen.keys() == arguments.keys()
        assert all(seen[name] is value for name, value in arguments.items())
        assert before == {name: arguments[name] for name in before}


def returned_object_is_not_modified(trainer: Trainer) -> None:
    returned: list[Any] = []

    def keep(values: list[Any]) -> Any:
        value: Any = values if trainer.batch else values[0]
        returned.append({trainer.key: value, "extra_logs": {}} if trainer.key else value)
        return returned[-1]

    guarded = trainer.wrap(grader(trainer, answer=keep))
    assert trainer.rewards(guarded, ["Hail", "fine"]) == [0.0, 1.0]
    plain: list[Any] = [[5.0, 1.0]] if trainer.batch else [5.0, 1.0]
    assert returned == [{trainer.key: p, "extra_logs": {}} if trainer.key else p for p in plain]


def names_are_kept(trainer: Trainer) -> None:
    function = grader(trainer, name="accuracy")
    function.__doc__ = "How accurate."
    guarded = trainer.wrap(function)
    assert (guarded.__name__, guarded.__doc__) == ("accuracy", "How accurate.")
    assert guarded.__module__ == function.__module__
    assert trainer.wrap(functools.partial(function)).__name__ == "accuracy"

    class Grader:
        def __init__(self) -> None:
            self.state = {"n": 1}
            self.__signature__ = function.__signature__

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    guarded = trainer.wrap(Grader())
    assert guarded.__name__ == "Grader"
    assert not hasattr(guarded, "state")  # an object's attributes stay on the object


def models_names_and_classes_are_refused(trainer: Trainer) -> None:
    for reward in (torch.nn.Linear(2, 2), "org/reward-model", Words, None):
        with pytest.raises(FrameworkError, match=r"expected a (function|callable)"):
            trainer.wrap(reward)


def numbers_of_common_types_become_floats(trainer: Trainer) -> None:
    for number in (3, True, np.float32(3), np.int64(3), torch.tensor(3.0), torch.tensor(3)):
        guarded = trainer.wrap(grader(trainer, lambda text, number=number: number))
        rewards = trainer.rewards(guarded, ["fine", "Hail"])
        assert rewards == [float(number), 0.0]
        assert [type(reward) for reward in rewards] == [float, float]
        if trainer.key:
            in_dict = grader(trainer, answer=lambda values, number=number: {trainer.key: number})
            assert trainer.rewards(trainer.wrap(in_dict), ["fine", "Hail"]) == [float(number), 0.0]
    if trainer.batch:
        for make in (tuple, np.array, torch.tensor, iter):
            guarded = trainer.wrap(grader(trainer, answer=make))
            assert trainer.rewards(guarded, ["fine", "Hail"]) == [1.0, 0.0]


def none_and_nan_are_kept_unless_rejected(trainer: Trainer) -> None:
    for value in (None, math.nan, math.inf, -math.inf):
        guarded = trainer.wrap(grader(trainer, lambda text, value=value: value))
        accepted, rejected = trainer.rewards(guarded, ["fine", "Hail"])
        if trainer.finite:
            assert (accepted, math.isfinite(rejected)) == (0.0, True)
        else:
            assert repr(accepted) == repr(value)
            assert rejected == (None if value is None else 0.0)
        assert rejected is None or rejected <= 0


def invalid_results_are_errors_naming_the_function(trainer: Trainer) -> None:
    wrong: tuple[Any, ...] = ("1.0", b"1", [1.0, 2.0, 3.0], [], object(), np.ones((2, 2)), {"a": 1})
    if trainer.any_key:
        wrong = wrong[:-1]
    for result in (*wrong, 1.0) if trainer.batch else wrong:
        guarded = trainer.wrap(grader(trainer, answer=lambda values, result=result: result))
        with pytest.raises((TypeError, ValueError), match="grade: "):
            trainer.rewards(guarded, ["fine", "good"])


def strict_signature_gets_only_its_own_arguments(trainer: Trainer) -> None:
    if trainer.positional:
        return  # the trainer passes all arguments, whatever their names
    accepts = trainer.calls(["fine"])[0].keys() & {trainer.texts}
    guarded = trainer.wrap(grader(trainer, accepts=accepts))
    assert trainer.rewards(guarded, ["fine", "Hail"]) == [1.0, 0.0]
