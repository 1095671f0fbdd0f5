"""How a guard treats completions that it rejects or cannot judge."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from grpo_guard.core.arguments import is_finite, require_count, worded_class
from grpo_guard.core.naming import near
from grpo_guard.core.quoting import shown

logger = logging.getLogger("grpo_guard")
OnReject: TypeAlias = Literal["zero", "drop", "no_gain", "keep"] | float
OnAbstain: TypeAlias = Literal["skip", "pass", "zero", "raise"]
OnLong: TypeAlias = Literal["keep", "scale"]


class AbstainError(RuntimeError):
    """The guard could not judge completions, and the policy says to stop."""


@worded_class
@dataclass(frozen=True, slots=True)
class Policy:
    """How verdicts become rewards; `grpo_guard.guard.settlement` has the formulas.

    If an argument is a tuple of rules, the first one that the trainer can carry out is used. A
    single rule that the trainer cannot carry out is refused at decoration. Raises ValueError if an
    argument is out of range.

    Args:
        on_reject: What to do with rejected completions. ``"drop"`` removes them from their group;
            ``"no_gain"`` does so only if they would gain; ``"zero"`` is the paper's r = r_task *
            r_guard; a number is used as the reward, with a warning if it is above 0. By default
            they are removed; if a trainer cannot remove a single completion from its group, that
            completion gets the reward of ``"zero"``. ``"keep"`` only watches: verdicts, metrics and
            ledger entries are produced, but no reward is changed, removed or replaced, whatever the
            verdict and the other arguments say. Abstentions keep their rewards too; lengths are not
            compared; and neither ``max_abstain_rate`` nor a failure of the guard itself stops the
            run. Only an explicit ``on_abstain="raise"`` still raises. ``"keep"`` cannot be combined
            with other rules, because a guard either watches or decides.
        on_abstain: What to do with completions that could not be judged. ``"skip"`` removes them;
            ``"pass"`` lets the task's reward through unguarded, and `Guard` refuses it if a
            completion's author can make a verifier abstain; ``"zero"`` is as for ``on_reject``;
            ``"raise"`` stops the run, so anyone who can cause one abstention can end it. The
            default is to remove them, or ``"zero"`` if the trainer cannot.
        on_long: What to do with long completions. ``"scale"`` multiplies a positive reward, after
            the veto, by a factor that shrinks as the completion grows longer than those of other
            nodes (`LengthScaling`), by default only for nodes whose lengths follow their rewards.
            No preset scales unless asked to. Completions with a factor of 0 are removed if
            ``on_reject`` removes completions. ``"keep"`` leaves rewards unchanged.
        max_abstain_rate: Maximum share of abstentions among completions that are not rejected, over
            the last ``abstain_window`` batches. Beyond it, `AbstainError` is raised, so that nobody
            trains unguarded without knowing. With two or more nodes, the node with the highest
            share of abstentions is not counted, nor are further nodes as long as the excluded nodes
            together sent less than half of the completions. So no minority can stop a run, whatever
            names it invents. But a minority that uses an honest node's name can distort that node's
            count, so `Completion.node` must be proven.
        abstain_window: Number of batches over which ``max_abstain_rate`` applies, once that many
            have been seen.
    """

    on_reject: OnReject | tuple[OnReject, ...] = ("drop", "zero")
    on_abstain: OnAbstain | tuple[OnAbstain, ...] = ("skip", "zero")
    on_long: OnLong | tuple[OnLong, ...] = "keep"
    max_abstain_rate: float = 0.25
    abstain_window: int = 20

    def __post_init__(self) -> None:
        for name, known in _RULES.items():
            value = getattr(self, name)
            if not isinstance(value, tuple | list):
                value = (value,)
            number = name == "on_reject"
            if not value or not all(r in known or (number and is_finite(r)) for r in value):
                got = getattr(self, name)
                *first, last = [*map(repr, known), *(["a finite number"] if number else [])]
                expected = f"{', '.join(first)} or {last}"
                nearest = near(known, got) if isinstance(got, str) else []
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise ValueError(f"Policy.{name}: expected {expected}, got {got!r}{hint}")
            for paid in (rule for rule in value if is_finite(rule) and rule > 0):
                _warn_paid(float(paid))
            object.__setattr__(self, name, value[0] if len(value) == 1 else tuple(value))
        if isinstance(self.on_reject, tuple) and "keep" in self.on_reject:
            raise ValueError(
                "Policy.on_reject: expected 'keep' alone, since a guard either watches or decides, "
                f"got {self.on_reject!r}"
            )
        if not (is_finite(self.max_abstain_rate) and 0 <= self.max_abstain_rate <= 1):
            raise ValueError(
                f"Policy.max_abstain_rate: expected a number in [0, 1], "
                f"got {self.max_abstain_rate!r}"
            )
        require_count("Policy.abstain_window", self.abstain_window)

    def chosen(self, cannot: Mapping["Rule", str] | None = None) -> "Policy":
        """Reduce each argument to one rule: the first that can be carried out. ``cannot`` maps each
        (argument, rule) that cannot to the reason and remedy: the message of the ValueError if no
        rule is left."""
        if not cannot:
            return _preferred(self)
        rules: dict[str, Any] = {}
        for name in _RULES:
            asked = self.rules(name)
            possible = [rule for rule in asked if (name, rule) not in cannot]
            if not possible:
                raise ValueError(cannot[name, asked[0]])
            rules[name] = possible[0]
        return replace(self, **rules)

    def rules(self, name: str) -> tuple[Any, ...]:
        """The rules of ``on_reject``, ``on_abstain`` or ``on_long``, in order of preference.

        Under ``on_reject="keep"``, returns the rules that apply to a guard that only watches.
        """
        value = getattr(self, name)
        rules = value if isinstance(value, tuple) else (value,)
        if name == "on_reject" or not self.watches:
            return rules
        # A watching guard lets everything through, and each argument has to say so.
        if name == "on_long":
            return ("keep",)
        return ("raise",) if rules[0] == "raise" else ("pass",)

    @property
    def watches(self) -> bool:
        """Whether the guard only watches and changes no reward (``on_reject="keep"``)."""
        return self.on_reject == "keep"

    @property
    def pays_abstentions(self) -> bool:
        """Whether abstentions can earn their reward even though rejections do not."""
        return "pass" in self.rules("on_abstain") and not self.watches

    @property
    def leaves_out(self) -> bool:
        """Whether rejected completions can be removed from their group."""
        return self.rules("on_reject")[0] in ("drop", "no_gain")


@lru_cache(maxsize=64)
def _warn_paid(number: float) -> None:
    """Warn about each number only once, because policies are copied often."""
    logger.warning(
        "Policy.on_reject=%g pays for rejected completions; expected a number that is at most the "
        "lowest reward of your task",
        number,
    )


@lru_cache(maxsize=64)
def _preferred(policy: Policy) -> Policy:
    """The policy with the first rule of each argument; cached, because every batch asks for it."""
    return replace(policy, **{name: policy.rules(name)[0] for name in _RULES})


Rule: TypeAlias = tuple[str, Any]
"""An argument of a policy and one of its rules, e.g. ``("on_reject", "drop")``."""

_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "on_reject": ("zero", "drop", "no_gain", "keep"),
    "on_abstain": ("skip", "pass", "zero", "raise"),
    "on_long": ("keep", "scale"),
}


def not_a_policy(where: str, got: object, wanted: str = "a Policy or None") -> TypeError:
    """The error for a value that is not a policy, with what to write instead."""
    hint = f"; write Policy(on_reject={got!r})" if got in _RULES["on_reject"] else ""
    if isinstance(got, Mapping):
        hint = "; write Policy(**...)"
    return TypeError(f"{where}: expected {wanted}, got {shown(got)}{hint}")
