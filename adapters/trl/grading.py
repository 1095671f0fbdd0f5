"""TRL: call reward functions under a guard that survives their failures.

Anything a function logs is held back until its call has succeeded, no matter which process it ran
in, so that a failed call leaves no partial column. TRL's table keeps a column's old values if a
batch adds none, so None is logged for the rows of a failed call.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.adapters.reward_function import RewardFunction
from grpo_guard.guard.graders import FAILED, LARGEST_REWARD, GraderFailures

if TYPE_CHECKING:
    from torch import Tensor

EXTRA: Final = "log_extra"
METRIC: Final = "log_metric"
# The logging calls of a function: ("log_extra" or "log_metric", positional arguments, keywords).
Logged = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class _Recorded:
    """Calls a function with recorders in place of the trainer's logging methods."""

    call: Callable[..., Any]
    names: tuple[str, ...]
    trainer: Any  # set in the trainer's process: a guarded function gets it from the methods
    is_async: bool

    def __call__(self, /, **given: Any) -> Any:
        """Return the function's answer and the recorded logging calls, or an awaitable of both if
        the function is async."""
        logged: Logged = []
        answer = self.call(**given, **{name: self._recorder(name, logged) for name in self.names})
        return _awaited(answer, logged) if self.is_async else (answer, logged)

    def _recorder(self, name: str, logged: Logged) -> Callable[..., None]:
        def record(*args: Any, **kwargs: Any) -> None:
            logged.append((name, args, kwargs))

        if self.trainer is not None:
            record.__self__ = self.trainer  # type: ignore[attr-defined]
        return record


async def _awaited(answer: Awaitable[Any], logged: Logged) -> tuple[Any, Logged]:
    return await answer, logged


class Grading:
    """Computes the rewards of a function, inspected with the guard, under its `GraderFailures`. If
    the function fails, completions get the reward ``failed``. With ``as_given``, as for a guard
    that only watches, the result is returned unread if there are no `GraderFailures`."""

    def __init__(
        self, function: RewardFunction, failed: float | None = None, *, as_given: bool = False
    ) -> None:
        self.function, self.failed, self.as_given = function, failed, as_given
        self._columns: dict[str, None] = {}

    def ask(self, given: Mapping[str, Any], count: int) -> Any:
        """Call a synchronous function with the keywords ``given``, and return its rewards, one for
        each of the ``count`` completions. Raises the errors of `RewardFunction.rewards`,
        AbstainError if too many calls failed, and without `GraderFailures` whatever the function
        raises."""
        function, failures = self.function, self.function.failures
        if failures is None:
            answer = function.call(**given)
            return answer if self.as_given else function.rewards(answer, count)
        call, rows = self._calls(given, count, failures)
        if failures.each:
            answers = failures.ask_each(function.name, call, rows)
        else:
            answers = [failures.ask(function.name, call, **rows[0])]
        return self._read(answers, given, count)

    async def aask(self, given: Mapping[str, Any], count: int) -> Any:
        """Like `ask`, but for an async function."""
        function, failures = self.function, self.function.failures
        if failures is None:
            answer = await function.call(**given)
            return answer if self.as_given else function.rewards(answer, count)
        call, rows = self._calls(given, count, failures)
        if failures.each:
            answers = await failures.aask_each(function.name, call, rows)
        else:
            answers = [await failures.aask(function.name, call, **rows[0])]
        return self._read(answers, given, count)

    def _calls(
        self, given: Mapping[str, Any], count: int, failures: GraderFailures
    ) -> tuple[_Recorded, list[dict[str, Any]]]:
        """The function with recorders, and the keywords of each call to make."""
        names = tuple(name for name in (EXTRA, METRIC) if given.get(name) is not None)
        here = failures.timeout is None or self.function.is_async
        owners = [getattr(given[name], "__self__", None) for name in names if here]
        call = _Recorded(
            self.function.call, names, next(iter(owners), None), self.function.is_async
        )
        kept = {name: value for name, value in given.items() if name not in names}
        if not failures.each:
            return call, [kept]
        # TRL passes every per-completion value as a list with one entry per completion.
        per_row = {k for k, v in kept.items() if isinstance(v, list) and len(v) == count}
        return call, [
            {k: v[i : i + 1] if k in per_row else v for k, v in kept.items()} for i in range(count)
        ]

    def _read(
        self, answers: Sequence[Any], given: Mapping[str, Any], count: int
    ) -> list[float | None]:
        size = 1 if len(answers) == count else count
        rewards: list[float | None] = []
        for answer in answers:
            if answer is FAILED:
                rewards += [self.failed] * size
            else:
                rewards += self.function.rewards(answer[0], size)
        self._log([None if a is FAILED else a[1] for a in answers], given, size)
        return rewards

    def _log(self, logged: Sequence[Logged | None], given: Mapping[str, Any], size: int) -> None:
        """Pass what the calls logged on to the trainer: metrics individually, columns in one go."""
        columns: list[dict[str, list[Any]]] = []
        for calls in logged:
            columns.append({})
            for name, args, kwargs in calls or ():
                if name == METRIC:
                    given[METRIC](*args, **kwargs)
                else:
                    column, values = _column(*args, **kwargs)
                    columns[-1].setdefault(column, []).extend(values)
                    self._columns[column] = None
        if given.get(EXTRA) is None:
            return
        for column in self._columns:
            if any(column in row for row in columns) or None in logged:
                values = [v for row in columns for v in row.get(column, [None] * size)]
                given[EXTRA](column, values)


def surviving(function: RewardFunction) -> Any:
    """Wrap a reward function for a guarded trainer so that it returns infinity for failures. Unlike
    other markers, infinity survives TRL's tensors and is distinct from None, which a function
    returns to leave the reward to other functions; see `without_failed`."""
    grading = Grading(function, failed=math.inf)

    def marked(rewards: Sequence[float | None]) -> list[float | None]:
        return [r if r is None or abs(r) <= LARGEST_REWARD else math.inf for r in rewards]

    if function.is_async:

        async def graded_async(**given: Any) -> list[float | None]:
            return marked(await grading.aask(given, len(given["completions"])))

        return function.dress(graded_async)

    def graded(**given: Any) -> list[float | None]:
        return marked(grading.ask(given, len(given["completions"])))

    return function.dress(graded)


def without_failed(rewards: "Tensor") -> "Tensor":
    """Set every column to NaN in the rows where any function failed, [rows, functions]."""
    return rewards.masked_fill(rewards.isinf().any(dim=1, keepdim=True), math.nan)


def _column(column: str, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return the arguments of ``log_extra``, whether passed by position or by name."""
    return column, values
