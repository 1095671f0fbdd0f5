"""Reward functions as all trainer adapters see them, inspected once, when they are wrapped."""

import asyncio
import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from grpo_guard.core.completion import shown
from grpo_guard.core.verdict import reject
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import FAILED, Grader, GraderFailures
from grpo_guard.guard.policy import Policy, Rule
from grpo_guard.guard.settlement import refuse_abstentions

logger = logging.getLogger("grpo_guard")


def is_guarded(function: Any) -> bool:
    """Whether a reward function, or the function inside a partial, is guarded already."""
    return isinstance(getattr(_bare(function), "guard", None), Guard)


def _bare(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


@dataclass(frozen=True)
class RewardFunction:
    """A user's reward function.

    Args:
        call: The function itself.
        name: The function's name in the trainer's metrics; the class name for an object without
            ``__name__``.
        is_async: Whether a call returns an awaitable.
        keywords: The keywords that the function accepts; None if it accepts any.
        failures: How the function's failures are handled; None if they propagate unchanged.
        read: Converts the result of a synchronous function, for `ask` and `attempt`. If the
            conversion raises, the call has failed.
    """

    call: Callable[..., Any]
    name: str
    is_async: bool
    keywords: frozenset[str] | None
    failures: GraderFailures | None = None
    read: Callable[[Any], Any] | None = None

    @classmethod
    def inspect(cls, reward: Any, guard: Guard | None = None) -> "RewardFunction":
        """Inspect a function, and adopt the guard's failure handling. Raises FrameworkError if the
        reward is not a function but a model, a model's name, or a class; or if the guard limits the
        time of calls, but the function cannot run in a worker process."""
        torch = sys.modules.get("torch")  # a module instance exists only if torch is loaded
        is_model = torch is not None and isinstance(reward, torch.nn.Module)
        if is_model or isinstance(reward, str):
            what = repr(reward) if isinstance(reward, str) else f"a {type(reward).__name__} model"
            raise FrameworkError(
                f"reward: expected a function, got {what}. The trainer feeds a reward model "
                "tokens, not completions; wrap a function that calls it."
            )
        if not callable(reward) or inspect.isclass(reward):
            raise FrameworkError(
                f"reward: expected a function or a callable object, got {reward!r:.80}"
            )
        bare = _bare(reward)
        name = getattr(reward, "__name__", None) or getattr(bare, "__name__", type(bare).__name__)
        is_async = inspect.iscoroutinefunction(bare) or inspect.iscoroutinefunction(
            getattr(bare, "__call__", None)  # noqa: B004 (the method is inspected, not called)
        )
        # A guard that only watches leaves failures to the trainer.
        failures = None if guard is None or guard.policy.watches else guard.failures
        if failures is not None:
            if failures.timeout is not None and not is_async and is_guarded(reward):
                raise FrameworkError(
                    f"{name}: it is already guarded, and what its guard remembers would stay in "
                    "worker processes; give the limit to the inner guard"
                )
            try:
                failures.check(str(name), reward, is_async)
            except TypeError as error:
                raise FrameworkError(str(error)) from error
        return cls(reward, str(name), is_async, _keywords(reward), failures)

    def ask(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function (await the result if the function is async). Returns `FAILED` if the
        call fails and the guard handles failures."""
        if self.failures is None:
            return self._unguarded(args, kwargs)
        ask = self.failures.aask if self.is_async else self.failures.ask
        return ask(self.name, self._grader, *args, **kwargs)

    def attempt(self, *args: Any, **kwargs: Any) -> Any:
        """Call a synchronous function as `ask` does, but raise failures and do not count them,
        because peers might have caused them."""
        if self.failures is None:
            return self._unguarded(args, kwargs)
        return self.failures.attempt(self.name, self._grader, *args, **kwargs)

    @property
    def _grader(self) -> Any:
        return self.call if self.read is None else Grader(self.call, self.read)

    def _unguarded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answer = self.call(*args, **kwargs)
        return answer if self.read is None else self.read(answer)

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the trainer's keywords that the function accepts."""
        accepted = self.keywords
        return {k: v for k, v in given.items() if accepted is None or k in accepted}

    def rewards(self, result: Any, expected: int) -> list[float | None]:
        """The function's result as plain numbers, one per completion. Raises TypeError if it is not
        a one-dimensional sequence of numbers and Nones, and ValueError for another number than
        ``expected``."""
        if result is FAILED:
            return [None] * expected
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"{self.name}: returned an awaitable; declare it with `async def`")
        shape = getattr(result, "shape", None)
        if shape is not None and len(shape) != 1:
            raise TypeError(
                f"{self.name}: expected {expected} rewards, one per completion, "
                f"got an array of shape {tuple(shape)}"
            )
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise TypeError(
                f"{self.name}: expected a list of {expected} rewards, got {shown(result)}"
            )
        values = result.tolist() if hasattr(result, "tolist") else result  # one copy from a GPU
        rewards = [self._number(value, row) for row, value in enumerate(values)]
        if len(rewards) != expected:
            raise ValueError(
                f"{self.name}: expected {expected} rewards, one per completion, got {len(rewards)}"
            )
        return rewards

    def _number(self, value: Any, row: int) -> float | None:
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            return None if value is None or value is FAILED else float(value)
        except OverflowError:  # an integer taken from a text can be arbitrarily large
            return math.inf if value > 0 else -math.inf
        except (TypeError, ValueError):
            raise TypeError(
                f"{self.name}: expected a number or None as reward {row}, got {shown(value)}"
            ) from None

    def dress(self, wrapper: Any) -> Any:
        """Give the wrapper the function's name, docstring and module, so that metrics show the
        function's name; other attributes are not copied."""
        functools.update_wrapper(wrapper, self.call, updated=())
        wrapper.__name__ = self.name
        return wrapper

    def guarded(
        self,
        guard: Guard,
        look: Callable[..., Review],
        settle: Callable[..., Any],
        arguments: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    ) -> Any:
        """Wrap this function in a guarded one, which is async if this function is. Under a guard
        that only watches, the function's results are returned unread.

        Args:
            guard: The guard whose policy is applied.
            look: Reviews the completions in a call's arguments. It runs first, so that nothing gets
                through if the guard fails.
            settle: Computes the return value from the review, the result, and the call's arguments.
            arguments: Selects which of the call's keywords are passed to the function.
        """

        def answer(found: Review, result: Any, args: Sequence[Any], given: Any) -> Any:
            if guard.policy.watches:
                refuse_abstentions(guard.policy, found.verdicts)
                return result
            return settle(found, result, *args, **given)

        if self.is_async:

            async def guarded_async(*args: Any, **given: Any) -> Any:
                found = await asyncio.to_thread(look, *args, **given)
                return answer(found, await self.ask(*args, **arguments(given)), args, given)

            return self.dress(guarded_async)

        def guarded(*args: Any, **given: Any) -> Any:
            found = look(*args, **given)
            return answer(found, self.ask(*args, **arguments(given)), args, given)

        return self.dress(guarded)


def require_one(reward: Any, trainer: str) -> None:
    """Raise FrameworkError for a list of reward functions if the trainer takes only one."""
    if isinstance(reward, list | tuple):
        raise FrameworkError(f"{trainer} takes one reward function, got a list; guard that one")


Cannot: TypeAlias = dict[Rule, str]


def without_leaving_out(trainer: str) -> Cannot:
    """Policy rules that cannot be carried out, with a message for each, by a trainer in which every
    reward enters its group's baseline and the reward function sees one completion at a time."""
    out = f"{trainer} cannot leave one completion out of its group from a reward function, as "
    return {
        ("on_reject", "drop"): f'{out}Policy(on_reject="drop") asks; choose on_reject="zero" or a '
        "number.",
        ("on_reject", "no_gain"): f'{out}Policy(on_reject="no_gain") asks; choose on_reject="zero" '
        "or a number.",
        ("on_abstain", "skip"): f'{out}Policy(on_abstain="skip") asks; choose on_abstain="zero" '
        "(no reward for what the guard could not check).",
        ("on_long", "scale"): f"{trainer} shows its reward function one completion at a time, and "
        'Policy(on_long="scale") compares those of a group; choose on_long="keep".',
    }


def without_no_gain(place: str, instead: str) -> Cannot:
    """Policy rules that cannot be carried out, with a message for each, in a place that does not
    see the full reward of every completion in a group."""
    return {
        ("on_reject", "no_gain"): f"{place} does not see the whole reward of a whole group, with "
        f'which on_reject="no_gain" compares them; {instead}'
    }


def without_lengths(trainer: str) -> Cannot:
    """Policy rules that an adapter cannot carry out, with a message for each, if it judges rollouts
    turn by turn."""
    return {
        ("on_long", "scale"): f"{trainer}'s adapter judges rollouts turn by turn and compares no "
        'lengths; choose on_long="keep".'
    }


def require_ids_read(guard: Guard, trainer: str) -> None:
    """Raise FrameworkError unless the guard reads token ids, for a trainer that trains on them."""
    if not guard.reads_ids:
        raise FrameworkError(
            f"{trainer} trains on token ids, and nothing in this guard compares them with the "
            "text that it reads; give it the policy's tokenizer: Guard(tokenizer=...), "
            "guard(..., tokenizer=...), a preset's tokenizer=, or tokenizer: in the guard file"
        )


def rewards_only(guard: Guard, trainer: str) -> Guard:
    """Fit the guard's policy, as `fitted` does, to a trainer whose rewards all enter their group's
    baseline."""
    return fitted(guard, trainer, without_leaving_out(trainer))


def fitted(guard: Guard, trainer: str, cannot: Cannot) -> Guard:
    """Return the guard with a policy that this trainer can carry out; see `chosen_policy`."""
    return guard.with_policy(chosen_policy(guard.policy, trainer, cannot))


def settled_finite(
    guard: Guard, review: Review | None, rewards: Sequence[float | None]
) -> list[float]:
    """Settle the rewards of a single function, [n], for a trainer that cannot handle None, NaN or
    infinities. If ``review`` is None, because the guard could not judge, no reward is above 0.

    A completion without a finite reward earns the same as a rejected one: 0 would be a gain if
    wrong answers get -1, and an author might know how to make a grader return NaN.
    """
    given = [x if x is not None and math.isfinite(x) else None for x in rewards]
    if review is None:
        return [min(0.0, x or 0.0) for x in given]
    verdicts = [
        reject("reward", message="no finite reward") if x is None else verdict
        for x, verdict in zip(given, review.verdicts, strict=True)
    ]
    kept = guard.settle([x or 0.0 for x in given], replace(review, verdicts=verdicts))
    return [x or 0.0 for x in kept]


async def graded(guard: Guard, name: str, call: Callable[..., Any], *args: Any) -> Any:
    """Await a trainer's own async grading and return its result, or `FAILED` if it fails and the
    guard handles failures. A guard that only watches leaves failures to the trainer."""
    failures = None if guard.policy.watches else guard.failures
    if failures is None:
        return await call(*args)
    return await failures.aask(name, call, *args)


def chosen_policy(policy: Policy, trainer: str, cannot: Cannot) -> Policy:
    """Choose the rules of a policy that this trainer can carry out, and log which ones were chosen.
    Raises FrameworkError if the policy asks for something else."""
    try:
        chosen = policy.chosen(cannot)
    except ValueError as error:
        raise FrameworkError(str(error)) from None
    names = ("on_reject", "on_abstain", "on_long")
    rules = ", ".join(f"{name}={getattr(chosen, name)!r}" for name in names)
    preferred = policy.chosen()
    wanted = [getattr(preferred, name) for name in names]
    lost = [repr(w) for w, n in zip(wanted, names, strict=True) if w != getattr(chosen, n)]
    level = logging.WARNING if lost else logging.INFO
    why = f"; {trainer} cannot carry out {', '.join(lost)} from here" if lost else ""
    logger.log(level, "grpo-guard in %s: %s%s", trainer, rules, why)
    return chosen


def _keywords(reward: Callable[..., Any]) -> frozenset[str] | None:
    try:
        # Do not follow __wrapped__: this callable's own parameters count. Otherwise a guarded
        # function inside another guard would be called without the ids if its inner function does
        # not name them.
        parameters = inspect.signature(reward, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(
        p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    )
