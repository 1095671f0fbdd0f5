"""What a guard is told to do with what it rejects and what it could not look at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

OnReject: TypeAlias = Literal["zero", "drop", "no_gain"] | float
OnAbstain: TypeAlias = Literal["skip", "pass", "zero", "raise"]
OnLong: TypeAlias = Literal["keep", "scale"]


class AbstainError(RuntimeError):
    """The guard could not look at completions, and the policy says not to go on."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How verdicts become rewards.

    Args:
        on_reject: What is rejected: ``"drop"`` and ``"no_gain"`` leave it out of its group, the
            second only where it would gain; ``"zero"`` is the paper's r = r_task * r_guard; a
            number is that reward. `grpo_guard.settlement` has the formulas.
        on_abstain: What could not be looked at: ``"skip"`` leaves it out, ``"pass"`` lets the
            task's reward through unguarded, ``"zero"`` and ``"raise"`` say what they do.
        on_long: ``"scale"`` multiplies what the veto leaves of a positive reward by a factor that
            falls with the completion's length beyond its group's (`LengthScaling`): honest answers
            may be long, so what is not blatant is no case for a verdict, yet length must not pay.
            ``"keep"`` leaves rewards alone.
        max_abstain_rate: Highest share of abstentions over the last ``abstain_window`` batches;
            beyond it `AbstainError` is raised, so that nobody trains unguarded without knowing.
        abstain_window: Batches over which that share is taken; it is first taken when full.

    Raises:
        ValueError: an argument is out of range.
    """

    on_reject: OnReject = "zero"
    on_abstain: OnAbstain = "skip"
    on_long: OnLong = "keep"
    max_abstain_rate: float = 0.25
    abstain_window: int = 20

    def __post_init__(self) -> None:
        if self.on_reject not in ("zero", "drop", "no_gain") and not _finite_number(self.on_reject):
            raise ValueError(
                f"Policy.on_reject: expected 'zero', 'drop', 'no_gain' or a finite number, "
                f"got {self.on_reject!r}"
            )
        if self.on_abstain not in ("skip", "pass", "zero", "raise"):
            raise ValueError(
                f"Policy.on_abstain: expected 'skip', 'pass', 'zero' or 'raise', "
                f"got {self.on_abstain!r}"
            )
        if self.on_long not in ("keep", "scale"):
            raise ValueError(f"Policy.on_long: expected 'keep' or 'scale', got {self.on_long!r}")
        if not (_finite_number(self.max_abstain_rate) and 0 <= self.max_abstain_rate <= 1):
            raise ValueError(
                f"Policy.max_abstain_rate: expected a number in [0, 1], "
                f"got {self.max_abstain_rate!r}"
            )
        window = self.abstain_window
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"Policy.abstain_window: expected an integer >= 1, got {window!r}")

    @property
    def leaves_out(self) -> bool:
        """Whether a rejected completion may leave its group."""
        return self.on_reject in ("drop", "no_gain")


def _finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
