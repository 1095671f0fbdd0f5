"""TRL: reward functions of `GRPOTrainer` and `RLOOTrainer` (trl 1.6 and later).

TRL calls ``f(prompts=, completions=, completion_ids=, **columns, trainer_state=, log_extra=,
log_metric=)`` once per rank and generation batch, and sums the functions' results. It removes a
completion from its group only if *every* function returns None, and a reward from one unguarded
function still counts (a warning names it), so guard all of them together, as a list.
`GuardedGRPOTrainer` in `trl.trainer` also guards what a reward function cannot reach.

Each rank sees its own slice of the batch. A group that spans ranks is merged for the verifiers, and
each rank settles all of the group's rewards; every rank must therefore call the guarded functions
the same number of times, as TRL does. A completion's `group` and `slot` number the prompts and rows
in this rank's slice, and `round` is the trainer's step, unless there are columns `slot` and
`round`. A public coin needs a column `slot` that counts each node's share of a group:
`docs/examples/trl_seed_replay.py`.

The asynchronous trainer of `trl.experimental` calls the functions in a separate process (see
`GuardedReward` on pickling), without a step and without logging; the guard then logs nothing.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from grpo_guard.adapters.received import Row
from grpo_guard.adapters.releases import require_release
from grpo_guard.adapters.reward_function import RewardFunction, fitted, without_no_gain
from grpo_guard.adapters.trl.batch import counts_slots, rows_from, tokenizer_of
from grpo_guard.adapters.trl.grading import Grading
from grpo_guard.adapters.trl.review import (
    BatchReviewer,
    RankReview,
    Turn,
    distributed_ranks,
    shared_reviews,
)
from grpo_guard.adapters.trl.trainer_checks import (
    check_decorated,
    check_room,
    check_sampler,
    warn_of_half_precision,
)
from grpo_guard.core.pages import page
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.review import Review
from grpo_guard.guard.settlement import refuse_abstentions

__all__ = ["GuardedReward", "TRLAdapter", "log_review", "rows_from"]


class TRLAdapter:
    """Guards TRL reward functions: one verification per batch, no matter how many functions share
    it."""

    recognised_by: ClassVar = frozenset({"completions"})

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a reward function, or each function in a list, for the trainer.

        Sync functions stay sync, async functions stay async, and names are kept. All functions
        wrapped by this guard, together or individually, share the review of a batch. A rejected
        completion gets

        * with ``on_reject="zero"``: 0.0 from every function;
        * with ``"drop"``: None from every function, which leaves it out of its group;
        * with ``"keep"``: its own reward; each function's result is returned unread;
        * with a number: that number from the function called first and 0.0 from the others, so that
          the sum is the number if all ``reward_weights`` are 1. Weights below 0 are refused.

        An accepted completion that loses its whole reward because of its length gets the mean of
        its group. A reward of None stays None. If only one of several functions returns None for a
        rejected completion, the 0.0 of the other functions still counts.

        Raises:
            FrameworkError: the policy has ``on_reject="no_gain"`` (a function sees only its own
                part of a reward), a list item is not a function, two functions have the same name
                (TRL would merge their metrics), or the installed trl is older than 1.6.
        """
        require_release("trl")
        cannot = without_no_gain("A reward function", f"use the guarded trainer ({page('trl')})")
        guard = fitted(guard, "TRL", cannot)
        together = isinstance(reward, list | tuple)
        functions = inspected(reward if together else [reward], guard)
        wrapped = [_wrap_one(function, guard) for function in functions]
        return GuardedList(wrapped) if together else wrapped[0]


class GuardedList(list[Any]):
    """Guarded reward functions. TRL looks up ``__name__`` or ``__call__`` of each reward function
    that it is given, so a list of these within another list is explained when the trainer is built.
    """

    @property
    def __name__(self) -> Any:
        return self.__call__

    @property
    def __call__(self) -> Any:
        raise TypeError(
            "reward_funcs: expected a list of functions, got a guard's list within a list; pass "
            "the list that the guard returned, without brackets around it"
        )


def inspected(rewards: Any, guard: Guard) -> list[RewardFunction]:
    """Inspect the reward functions in a list. Raises FrameworkError if an item is not a function,
    or if two functions have the same name."""
    functions = [RewardFunction.inspect(reward, guard) for reward in rewards]
    for name, count in Counter(f.name for f in functions).items():
        if count > 1:
            raise FrameworkError(
                f"reward: {count} functions are named {name!r}, and TRL would merge their "
                "metrics; set __name__ to tell them apart"
            )
    return functions


def _wrap_one(function: RewardFunction, guard: Guard) -> Any:
    reward = GuardedReward(function, guard)
    if not function.is_async:
        return reward

    async def guarded(**kwargs: Any) -> Any:
        return await reward.acall(**kwargs)

    # Wrapped in a function, because TRL before 1.14 does not await an object's async __call__.
    wrapped = function.dress(guarded)
    wrapped.guard = guard
    return wrapped


class GuardedReward:
    """A guarded function that keeps its name, and settles each call's rewards using the review of
    that call's batch.

    It is pickled by name if its module holds it under that name, as after ``@guard(...)``;
    otherwise together with its function and its guard, including verifier and ledger, if they can
    be pickled. An async function can only be pickled by name.
    """

    def __init__(self, function: RewardFunction, guard: Guard) -> None:
        self.function, self.guard = function, guard
        self._grading = Grading(function, as_given=guard.policy.watches)
        function.dress(self)

    def __call__(self, own: Mapping[str, Any] | None = None, /, **kwargs: Any) -> Any:
        """Return the guarded rewards of a synchronous function, a list of numbers and None; under
        ``on_reject="keep"``, the function's own result. The batch is read from the keywords of
        TRL's call; the function gets ``own``, or those keywords."""
        column = _column(kwargs, self.guard)
        reviewer = BatchReviewer(self.guard, counts_slots(kwargs))
        reviews = shared_reviews(self.guard)  # not stored, because reviews cannot be pickled
        review, first = reviews.get(reviewer, _rows(kwargs), reader=self.function)
        given = self.function.arguments(kwargs if own is None else own)
        ask = partial(self._grading.ask, given, len(review.own.verdicts))
        return self._settled(review, column if first else None, ask, kwargs)

    async def acall(self, own: Mapping[str, Any] | None = None, /, **kwargs: Any) -> Any:
        """Like `__call__`, but for an async function."""
        # Assigned before any await, so that all ranks assign the same names.
        column = _column(kwargs, self.guard)
        reviewer = BatchReviewer(self.guard, counts_slots(kwargs))
        reviews, rows = shared_reviews(self.guard), _rows(kwargs)
        given = self.function.arguments(kwargs if own is None else own)
        if distributed_ranks() is None:
            review, first = await reviews.aget(reviewer, rows, reader=self.function)
            rewards = await self._grading.aask(given, len(review.own.verdicts))
            return self._settled(review, column if first else None, lambda: rewards, kwargs)
        with Turn() as turn:
            # All ranks must exchange in the same order, which several guards' threads would not do.
            review, first = reviews.get(reviewer, rows, reader=self.function)
            # Wait here, but raise the function's exception later, where all ranks receive it.
            asked = asyncio.ensure_future(self._grading.aask(given, len(review.own.verdicts)))
            try:
                await asyncio.wait([asked])
            finally:
                asked.cancel()
            await turn.come()
            return self._settled(review, column if first else None, asked.result, kwargs)

    def _settled(
        self,
        review: RankReview,
        column: str | None,
        rewards: Callable[[], Sequence[float | None]],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Log the review and settle the rewards. ``column`` is the name that the review is logged
        under, or None if it is already logged."""
        if column is not None:
            log_review(review.own, kwargs.get("log_metric"), kwargs.get("log_extra"), column)
        policy = self.guard.policy
        if policy.watches:
            given = rewards()
            refuse_abstentions(policy, review.own.verdicts)
            return given  # the same object, unread
        if column is None and not isinstance(policy.on_reject, str):
            policy = replace(policy, on_reject="zero")
        return review.settle(self.guard, rewards, policy)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = str(getattr(self, "__qualname__", ""))
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (GuardedReward, (self.function, self.guard))


def log_review(
    review: Review,
    log_metric: Callable[[str, float], Any] | None,
    log_extra: Callable[[str, list[str]], Any] | None,
    column: str = "guard",
) -> None:
    """Log a review's metrics and a column of the completions table, if the trainer supports them.
    The column has ``accept``, or the outcome with its reason: ``reject: says Hail``. If length
    reduces the reward, the factor is included: ``accept, length x 0.26``."""
    if log_metric is not None:
        figures = _storable(review.metrics, getattr(log_metric, "__self__", None))
        for name, value in figures.items():
            log_metric(f"{column}/{name.removeprefix('guard/')}", value)
    if log_extra is not None:
        factors = review.length_factors or [1.0] * len(review.verdicts)
        log_extra(column, list(map(_shown, review.verdicts, factors)))


def _storable(metrics: Mapping[str, float], trainer: Any) -> dict[str, float]:
    """Rename metrics so that MLflow can keep them as files. Its file store creates a file
    ``guard/reject_rate`` and then cannot create a folder of that name for
    ``guard/reject_rate/screens``, which it silently drops. So for this store, the last slash of
    such a name becomes a dot, ``guard/reject_rate.screens``."""
    if not _keeps_files(trainer):
        return dict(metrics)
    stored = {}
    for name, value in metrics.items():
        rate, slash, last = name.rpartition("/")
        stored[f"{rate}.{last}" if slash and rate in metrics else name] = value
    return stored


def _keeps_files(trainer: Any) -> bool:
    # MLflow has been imported by now if the trainer reports to it.
    mlflow = sys.modules.get("mlflow")
    reports = getattr(getattr(trainer, "args", None), "report_to", None) or ()
    if mlflow is None or "mlflow" not in reports:
        return False
    uri = str(mlflow.get_tracking_uri())
    return uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks"))


def _shown(verdict: Verdict, factor: float) -> str:
    length = f", length x {factor:.2f}" if factor < 1 else ""
    if verdict.rejected and not verdict.findings:
        return f"reject{length}: {', '.join(verdict.deciding) or verdict.verifier}"
    reason = "" if verdict.accepted else f": {verdict.reason}"
    return f"{verdict.outcome.value}{length}{reason}"


def _trainer(kwargs: Mapping[str, Any]) -> Any:
    """The trainer, found through the logging methods it passes; None if it passes none."""
    return getattr(kwargs.get("log_extra", kwargs.get("log_metric")), "__self__", None)


def _rows(kwargs: Mapping[str, Any]) -> list[Row]:
    trainer = _trainer(kwargs)
    return rows_from(kwargs, tokenizer=tokenizer_of(trainer), trainer=trainer)


_guards_of: WeakKeyDictionary[Any, list[Guard]] = WeakKeyDictionary()


def _column(kwargs: Mapping[str, Any], guard: Guard) -> str:
    """The column name of a guard: "guard" for a trainer's first guard, "guard_2" for its second. If
    two guards shared a name, TRL would append one column to the other, and a table with columns of
    unequal length ends the run. Also checks, at the first call, that guard and trainer go
    together."""
    trainer = _trainer(kwargs)
    try:
        guards = _guards_of.setdefault(trainer, [])
    except TypeError:
        return "guard"  # not a trainer's method
    if all(known is not guard for known in guards):
        check_decorated(trainer, guard.policy)
        warn_of_half_precision(trainer)
        guards.append(guard)
    check_sampler(trainer, guard)
    check_room(trainer, guard, kwargs.get("prompts"))
    place = next(i for i, known in enumerate(guards, 1) if known is guard)
    return "guard" if place == 1 else f"guard_{place}"
