"""Check the return values of reward functions before rewards are settled."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Any, Final

from grpo_guard.core.quoting import shown
from grpo_guard.guard.graders import GraderFailures, finite_or_none
from grpo_guard.guard.review import Review

logger = logging.getLogger("grpo_guard")
_NOT_LISTS: Final = (str, bytes, Mapping, Set)  # a set has no order


class RewardCheck:
    """Reads rewards as one number or None per completion; warns once about non-finite rewards."""

    def __init__(self) -> None:
        self._warned = False

    def read(
        self, rewards: Any, review: Any, failures: GraderFailures | None, *, watches: bool = False
    ) -> tuple[list[Any], list[float | None]]:
        """Return the rewards, each a number or None, [n], twice: as objects to hand back, and as
        numbers for settlement. With ``failures``, non-finite rewards become None; for a guard that
        only watches, rewards can have any type. Raises TypeError if rewards or review have the
        wrong type, or a reward is not one number."""
        if not isinstance(review, Review):
            raise TypeError(f"review: expected what Guard.review returns, got {shown(review)}")
        found = _listed(rewards, any_shape=watches)
        if watches:
            numbers = [reward if _is_number(reward) else None for reward in found]
            self._look_at(numbers)
            return found, numbers
        for i, reward in enumerate(found):
            if reward is not None and type(reward) is not float and not _is_number(reward):
                raise TypeError(
                    f"rewards[{i}]: expected a number or None, got {shown(reward)}; a reward is "
                    "one number: write float(...), or guard several functions as one list"
                )
        if failures is not None:
            finite = finite_or_none(found)
            return finite, finite
        self._look_at(found)
        return found, found

    def _look_at(self, rewards: Sequence[float | None]) -> None:
        odd = 0 if self._warned else sum(r is not None and not math.isfinite(r) for r in rewards)
        if odd:
            self._warned = True
            logger.warning(
                "rewards: %d of %d are nan or infinite, which most trainers carry into their whole "
                "group. Return None for no reward, or pass failures=GraderFailures(), which "
                "leaves these completions out. This warning comes once",
                odd, len(rewards),
            )  # fmt: skip


def _listed(rewards: Any, *, any_shape: bool) -> list[Any]:
    shape = getattr(rewards, "shape", None)
    if shape is not None and not (len(shape) == 1 or (any_shape and len(shape))):
        raise TypeError(
            f"rewards: expected one number or None per completion, got the shape {list(shape)}; "
            "add up the columns, or flatten it"
        )
    if isinstance(rewards, _NOT_LISTS) or not isinstance(rewards, Iterable):
        raise TypeError(
            f"rewards: expected one number or None per completion, in a list, got {shown(rewards)}"
        )
    return list(rewards)


def _is_number(value: Any) -> bool:
    """Whether settlement can calculate with a value. `Decimal` cannot be multiplied by a float."""
    if not isinstance(value, Real) and not hasattr(value, "item"):
        return False
    try:
        math.isfinite(value)
    except Exception:  # text, several numbers, or a tensor without data
        return False
    return True
