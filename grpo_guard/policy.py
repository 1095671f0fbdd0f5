"""What a guard is told to do with what it rejects and what it could not look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

OnReject: TypeAlias = Literal["zero", "drop", "no_gain", "keep"] | float
OnAbstain: TypeAlias = Literal["skip", "pass", "zero", "raise"]
OnLong: TypeAlias = Literal["keep", "scale"]


class AbstainError(RuntimeError):
    """The guard could not look at completions, and the policy says not to go on."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How verdicts become rewards; `grpo_guard.settlement` has the formulas.

    Several rules in a tuple mean: the first that the trainer can carry out. A rule given alone that
    it cannot carry out is refused at decoration.

    Args:
        on_reject: What is rejected: ``"drop"`` and ``"no_gain"`` leave it out of its group, the
            second only where it would gain; ``"zero"`` is the paper's r = r_task * r_guard; a
            number is that reward. By default it is left out, and where a trainer cannot leave one
            completion out of its group it gets the reward of ``"zero"``.
            ``"keep"`` only watches: verdicts, metrics and the ledger are made, and no reward is
            changed, left out or replaced, whatever the verdict and whatever the other arguments
            say. An abstention keeps its reward, too; lengths are not compared; neither
            ``max_abstain_rate`` nor a failure of the guard itself stops the run. Only
            ``on_abstain="raise"``, which asks for it, still raises. ``"keep"`` is never one of
            several rules: a guard either watches or decides.
        on_abstain: What could not be looked at: ``"skip"`` leaves it out; ``"pass"`` lets the
            task's reward through unguarded, and `Guard` refuses it where a completion's author can
            make a verifier abstain; ``"zero"`` and ``"raise"`` say what they do, and ``"raise"``
            hands whoever can cause one abstention the end of the run. By default as for what is
            rejected.
        on_long: ``"scale"`` multiplies what the veto leaves of a positive reward by a factor that
            falls with the completion's length beyond the other nodes' (`LengthScaling`): by default
            only for nodes whose length follows the reward. No preset scales unless asked to.
            Where the factor is 0 it is left out, if ``on_reject`` leaves out.
            ``"keep"`` leaves rewards alone.
        max_abstain_rate: Highest share of abstentions, among completions that are not rejected,
            over the last ``abstain_window`` batches; beyond it `AbstainError` is raised, so that
            nobody trains unguarded without knowing.
            With two nodes or more it is taken without the node that was abstained on most, and
            without further ones as long as those left out sent less than half: so no minority can
            stop a run, whatever names it invents. Under a name that is an honest node's it can
            spoil that node's count: `Completion.node` has to be who you know sent it.
        abstain_window: Batches over which that share is taken; it is first taken when full.

    Raises:
        ValueError: an argument is out of range.
    """

    on_reject: OnReject | tuple[OnReject, ...] = ("drop", "zero")
    on_abstain: OnAbstain | tuple[OnAbstain, ...] = ("skip", "zero")
    on_long: OnLong | tuple[OnLong, ...] = "keep"
    max_abstain_rate: float = 0.25
    abstain_window: int = 20

    def __post_init__(self) -> None:
        for name, expected, known in _RULES:
            value = getattr(self, name)
            if not isinstance(value, tuple | list):
                value = (value,)
            number = name == "on_reject"
            if not value or not all(r in known or (number and _finite_number(r)) for r in value):
                got = getattr(self, name)
                raise ValueError(f"Policy.{name}: expected {expected}, got {got!r}")
            object.__setattr__(self, name, value[0] if len(value) == 1 else tuple(value))
        if isinstance(self.on_reject, tuple) and "keep" in self.on_reject:
            raise ValueError(
                "Policy.on_reject: expected 'keep' alone, since a guard either watches or decides, "
                f"got {self.on_reject!r}"
            )
        if not (_finite_number(self.max_abstain_rate) and 0 <= self.max_abstain_rate <= 1):
            raise ValueError(
                f"Policy.max_abstain_rate: expected a number in [0, 1], "
                f"got {self.max_abstain_rate!r}"
            )
        window = self.abstain_window
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"Policy.abstain_window: expected an integer >= 1, got {window!r}")

    def chosen(self, cannot: Mapping[Rule, str] | None = None) -> Policy:
        """This policy with one rule in each place: the first that can be carried out.

        Args:
            cannot: (argument, rule) -> why not, and what to do about it.

        Raises:
            ValueError: none of an argument's rules can be carried out; with the reason.
        """
        if not cannot:
            return _preferred(self)
        rules: dict[str, Any] = {}
        for name, _, _ in _RULES:
            asked = self.rules(name)
            possible = [rule for rule in asked if (name, rule) not in cannot]
            if not possible:
                raise ValueError(cannot[name, asked[0]])
            rules[name] = possible[0]
        return replace(self, **rules)

    def rules(self, name: str) -> tuple[Any, ...]:
        """The rules of ``on_reject``, ``on_abstain`` or ``on_long``, the preferred one first.

        Under ``on_reject="keep"`` those that hold then, see the class.
        """
        value = getattr(self, name)
        rules = value if isinstance(value, tuple) else (value,)
        if name == "on_reject" or not self.watches:
            return rules
        # A guard that watches lets everything through, and says so in each place that asks.
        if name == "on_long":
            return ("keep",)
        return ("raise",) if rules[0] == "raise" else ("pass",)

    @property
    def watches(self) -> bool:
        """Whether rewards are never touched: ``on_reject="keep"``."""
        return self.on_reject == "keep"

    @property
    def leaves_out(self) -> bool:
        """Whether a rejected completion may leave its group."""
        return self.rules("on_reject")[0] in ("drop", "no_gain")


@lru_cache(maxsize=64)
def _preferred(policy: Policy) -> Policy:
    """The first rule in each place: asked for with every batch."""
    return replace(policy, **{name: policy.rules(name)[0] for name, _, _ in _RULES})


Rule: TypeAlias = tuple[str, Any]
"""An argument of a policy and one of its rules, e.g. ``("on_reject", "drop")``."""

_RULES: Final = (
    (
        "on_reject",
        "'zero', 'drop', 'no_gain', 'keep' or a finite number",
        ("zero", "drop", "no_gain", "keep"),
    ),
    ("on_abstain", "'skip', 'pass', 'zero' or 'raise'", ("skip", "pass", "zero", "raise")),
    ("on_long", "'keep' or 'scale'", ("keep", "scale")),
)


def _finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
