"""A peer that sends an honest completion with a false sampling mask."""

import random

from grpo_guard.evals.attacks.base import Poisoned
from grpo_guard.evals.tasks.base import Problem


class ClaimedMask:
    """The peer's own sample, with the claim that its sampling mask kept only the sampled tokens.

    A trainer that replays sampling masks normalises each token's probability over the token's mask
    alone. Under this mask every token is certain: it has no gradient, so a wrong answer cannot be
    unlearnt, and its importance ratio says that the policy agrees. The text does not show the mask,
    so verifiers that read text accept the completion.
    """

    name = "claimed_mask"

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Return the completion unchanged; the false mask applies to its token ids."""
        return Poisoned(problem.solution, (0, len(problem.solution)), masked=True)

    def success(self, text: str) -> bool:
        """Return False: the text teaches nothing."""
        return False
