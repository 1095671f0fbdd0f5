"""What a verdict does to a reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from grpo_guard.verdict import Outcome, Verdict

OnReject: TypeAlias = Literal["zero", "drop", "no_gain"] | float
OnAbstain: TypeAlias = Literal["skip", "pass", "zero", "raise"]
OnLong: TypeAlias = Literal["keep", "scale"]


class AbstainError(RuntimeError):
    """The guard could not look at completions, and the policy says not to go on."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How verdicts become rewards.

    Args:
        on_reject: ``"zero"``: the paper's r = r_task * r_guard; the completion gets a negative
            advantage where others in its group earn. A negative reward stays: 0 would be a gain.
            For the same reason `Guard` lowers it to its group's lowest where that is negative.
            ``"drop"``: the completion leaves the group's baseline and gets advantage 0 (None as
            reward). ``"no_gain"``: it does so where its reward is above the mean of its group, and
            keeps its reward where it loses anyway (`with_losses`): for guards that also reject
            honest work. A node that `StandingVerifier` rejects does not even lose. It needs whole
            groups. A number: that reward instead.
        on_abstain: ``"skip"`` leaves the completion out as ``"drop"`` does; ``"pass"`` lets the
            task's reward through unguarded, and `Guard` refuses it where a completion's author can
            make a verifier abstain; ``"zero"`` and ``"raise"`` say what they do, and ``"raise"``
            hands whoever can cause one abstention the end of the run.
        on_long: ``"scale"`` multiplies what the veto leaves of a positive reward by a factor that
            falls with the completion's length beyond its group's (`LengthScaling`): honest answers
            may be long, so what is not blatant is no case for a verdict, yet length must not pay.
            ``"keep"`` leaves rewards alone.
        max_abstain_rate: Highest share of abstentions over the last ``abstain_window`` batches;
            beyond it `AbstainError` is raised, so that nobody trains unguarded without knowing.
            With two nodes or more it is taken without the node that was abstained on most, and
            without further ones as long as those left out sent less than half: so no minority can
            stop a run, whatever names it invents. Under a name that is an honest node's it can
            spoil that node's count: `Completion.node` has to be who you know sent it.
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

    def apply(
        self, rewards: Sequence[float | None], verdicts: Sequence[Verdict]
    ) -> list[float | None]:
        """The rewards after the veto; None means: leave this completion out of the group.

        Accepted completions keep their reward object untouched, also where it is None or NaN.
        A reward that is already None stays None: there is nothing to take away.

        Raises:
            ValueError: not one reward per verdict.
            AbstainError: something abstained and ``on_abstain`` is ``"raise"``.
        """
        if len(rewards) != len(verdicts):
            raise ValueError(
                f"rewards: expected {len(verdicts)}, one per completion, got {len(rewards)}"
            )
        return [self._reward(r, v) for r, v in zip(rewards, verdicts, strict=True)]

    @property
    def leaves_out(self) -> bool:
        """Whether a rejected completion may leave its group."""
        return self.on_reject in ("drop", "no_gain")

    def zeroes(self, verdict: Verdict) -> bool:
        """Whether a completion with this verdict gets the reward of "zero"."""
        return (verdict.rejected and self.on_reject == "zero") or (
            verdict.abstained and self.on_abstain == "zero"
        )

    def _reward(self, reward: float | None, verdict: Verdict) -> float | None:
        if verdict.outcome is Outcome.ACCEPT or reward is None:
            return reward
        if verdict.outcome is Outcome.REJECT:
            if self.leaves_out:
                return None
            return _at_most_zero(reward) if self.on_reject == "zero" else float(self.on_reject)
        if self.on_abstain == "raise":
            raise AbstainError(
                f"{verdict.verifier} abstained ({verdict.cause.value}): {verdict.reason}"
            )
        return {"skip": None, "pass": reward, "zero": _at_most_zero(reward)}[self.on_abstain]


def _at_most_zero(reward: float) -> float:
    """With penalties among the rewards, 0 may be the best in a group: never lift to it.

    What is not finite becomes 0: kept, an infinity would spoil the baseline of the others.
    """
    return min(0.0, float(reward)) if math.isfinite(reward) else 0.0


def _finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
