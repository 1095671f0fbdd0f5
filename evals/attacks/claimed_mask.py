"""A peer that sends an honest completion with a false sampling mask."""

from __future__ import annotations

import random

from grpo_guard.evals.attacks.base import Poisoned
from grpo_guard.evals.tasks.base import Problem


class ClaimedMask:
    """The peer's own sample, with the claim that its sampler kept nothing but what it drew.

    A trainer that replays sampling masks normalises each token over its mask alone. Under this one
    every token is certain: it has no gradient, so that a wrong answer cannot be unlearnt, and its
    importance ratio says that the policy agrees. No text shows it, so verifiers of texts accept.
    """

    name = "claimed_mask"

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """The completion as it is; the mask is put on its token ids."""
        return Poisoned(problem.solution, (0, len(problem.solution)), masked=True)

    def success(self, text: str) -> bool:
        """Never: the text teaches nothing."""
        return False
