"""How many tokens of a completion the drift allowance lets an attacker exchange.

    python -m grpo_guard.evals.studies.replay.room

For each margin of a profile's table, the largest number of tokens with that margin or more, and no
others, that is still accepted, all positions being informative.
"""

from __future__ import annotations

from grpo_guard.logprob.evidence import binomial_tail
from grpo_guard.logprob.profile import BFLOAT16, FLOAT32, DriftProfile

LENGTHS = (10, 50, 160, 500, 1000, 8000)
ALPHA = 1e-3


def room(profile: DriftProfile, tokens: int, margin: float, alpha: float = ALPHA) -> int:
    """Tokens whose margin is ``margin`` that pass in a completion of ``tokens`` tokens."""
    rates = [rate for at, rate in profile.replay if at <= margin]
    for k in range(1, tokens + 1):
        p = len(profile.replay) * min(binomial_tail(k, tokens, rate) for rate in rates)
        if p < alpha:
            return k - 1
    return tokens


def main() -> None:
    """Print a table for each built-in profile."""
    for profile in (BFLOAT16, FLOAT32):
        margins = [margin for margin, _ in profile.replay]
        print(f"{profile.name}, alpha {ALPHA:g}; tokens | margin >= ".ljust(42), end="")
        print("".join(f"{margin:>7g}" for margin in margins))
        for n in LENGTHS:
            print(f"{n:>41} ", "".join(f"{room(profile, n, margin):>7}" for margin in margins))


if __name__ == "__main__":
    main()
