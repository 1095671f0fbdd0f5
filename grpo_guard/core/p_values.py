"""Combine p-values under arbitrary dependence.

Verifiers judge the same completion, so their p-values depend on each other in unknown ways. Both
rules here (Bonferroni, Rüger) are valid under any dependence. Fisher's and Stouffer's methods would
require independence, and an attacker who reads the code could exploit the difference.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from grpo_guard.core.arguments import require_level
from grpo_guard.core.verdict import Cause, Finding, Outcome, Verdict

_LEAST: Final = 1e-300
"""The smallest p-value shown: below it, float64 soon underflows, and p would be printed as 0."""


def p_text(p: float) -> str:
    """Format a p-value: ``1.2e-05``, or ``< 1e-300``, because no probability is 0."""
    return f"{p:.1e}" if p >= _LEAST else f"< {_LEAST}"


def bonferroni(p_values: Sequence[float | None], shares: Sequence[float]) -> float | None:
    """Weighted Bonferroni over tests: ``min(p_i / share_i)``, at most 1; None if no test has a
    p-value.

    The result is super-uniform under any dependence, because P(some p_i <= share_i * t) <= t *
    sum(shares). The shares of the error budget, each > 0, add up to at most 1 and are fixed in
    advance: splitting the budget among the tests that happen to answer would let the data choose
    the test.
    """
    each = [p / share for p, share in zip(p_values, shares, strict=True) if p is not None]
    return min(1.0, *each) if each else None


def ruger(p_values: Sequence[float], rejects: int) -> float:
    """Rüger's rule for "at least ``rejects`` of n tests reject", 1 <= ``rejects`` <= n: ``n /
    rejects * p_(rejects)``.

    The result is super-uniform under any dependence (Rüger 1978, Metrika 25): the expected number
    of p-values below t is at most n * t, so the probability that at least ``rejects`` of them are
    below t is at most n * t / rejects.
    """
    return min(1.0, len(p_values) / rejects * sorted(p_values)[rejects - 1])


def normalised_shares(shares: Sequence[float] | None, members: int, where: str) -> list[float]:
    """Normalise relative weights, one per member, to add up to 1; None gives equal shares. Raises
    ValueError if there is not one weight per member, or a weight is not finite and > 0; the message
    begins with ``where``."""
    if shares is None:
        return [1 / members] * members
    if len(shares) != members or any(not (math.isfinite(s) and s > 0) for s in shares):
        raise ValueError(
            f"{where}: expected {members} finite numbers > 0, one per member, got {shares!r}"
        )
    total = math.fsum(shares)
    return [share / total for share in shares]


def budget_shares(
    where: str, members: Sequence[Any], alpha: float | None, shares: Sequence[float] | None
) -> list[float]:
    """Return each member's share of the budget ``alpha``, see `normalised_shares`. Raises
    ValueError if a value is out of range, or a member could never reject, because its smallest
    p-value is above its share of ``alpha``. The message begins with ``where``."""
    if alpha is not None:
        require_level(f"{where}.alpha", alpha)
    normalised = normalised_shares(shares, len(members), f"{where}.shares")
    for member, share in zip(members, normalised, strict=True):
        least = smallest_p(member)
        if alpha is not None and least > alpha * share:
            raise ValueError(
                f"{where}.alpha: expected {member.name}'s share, {alpha * share:.2g}, to be at "
                f"least its smallest p-value, {least:.2g}; calibrate it on more honest "
                f"completions, or give it a larger share, got alpha={alpha!r}"
            )
    return normalised


def decided_by_p(verdict: Verdict, alpha: float) -> Verdict:
    """Decide a judgement by its p-value at level ``alpha``; return other verdicts unchanged."""
    p = verdict.p_value
    if p is None or verdict.cause is not Cause.JUDGED or verdict.rejected == (p <= alpha):
        return verdict
    if verdict.rejected:
        return replace(verdict, outcome=Outcome.ACCEPT)
    message = f"p-value {p_text(p)}, at most {alpha:.2g}, its share of the budget"
    note = Finding("small_p_value", message)
    return replace(verdict, outcome=Outcome.REJECT, findings=(note, *verdict.findings))


def deciding_p_values(verdict: Verdict) -> dict[str, float]:
    """Map the innermost members with the verdict's outcome to their p-values, if they have one.

    Only these can be compared with a level: an ensemble's own p-value allows for all its members,
    so it is larger than that of the member that decided.
    """
    same = [member for member in verdict.members if member.outcome is verdict.outcome]
    if not same:
        return {} if verdict.p_value is None else {verdict.verifier: verdict.p_value}
    found: dict[str, float] = {}
    for member in same:
        for name, p in deciding_p_values(member).items():
            found[name] = min(p, found.get(name, 1.0))
    return found


def smallest_p(verifier: object) -> float:
    """Return the smallest p-value that a verifier can give, or 0 if no bound is known."""
    return float(getattr(verifier, "smallest_p", 0.0))
