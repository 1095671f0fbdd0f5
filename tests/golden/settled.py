"""A grid of small groups, and what each policy makes of their rewards."""

import itertools
import json
import math
import random
from collections.abc import Sequence

from grpo_guard import Completion, CompletionVerifier, Guard, Policy, Verdict
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.guard import Review

ON_REJECT = ("zero", "drop", "no_gain", -0.5)
ON_ABSTAIN = ("skip", "pass", "zero")
REWARDS = (0.0, 1.0, 0.5, -1.0, 0.25, None, math.nan, math.inf, -math.inf)
CASES = 60


class ByText(CompletionVerifier):
    """Decides by the first letter of the text: r(ejected), s(kipped), or accepted."""

    name = "by_text"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        by_letter = {
            "r": lambda: reject(self.name),
            "s": lambda: abstain(self.name, Cause.UNSUPPORTED),
        }
        return [by_letter.get(c.text, lambda: accept(self.name))() for c in batch]


def settled_grid() -> dict[str, list[str]]:
    """For each policy rows of rewards, letters, prompts, factors or None, and settled rewards."""
    rng = random.Random(0)
    found: dict[str, list[str]] = {}
    for case in range(CASES):
        size = 1 + case % 9
        pool = REWARDS if case % 3 == 0 else REWARDS[:5]
        rewards = [rng.choice(pool) for _ in range(size)]
        letters = "".join(rng.choice("aaarrs") for _ in range(size))
        prompts = "".join(rng.choice("pq" if case % 2 else "p") for _ in range(size))
        factors = [rng.choice((1.0, 0.5)) for _ in range(size)] if case % 4 == 1 else None
        for on_reject, on_abstain in itertools.product(ON_REJECT, ON_ABSTAIN):
            policy = Policy(on_reject=on_reject, on_abstain=on_abstain, max_abstain_rate=1.0)
            guard = Guard(ByText(), policy=policy)
            batch = [Completion(p, t) for p, t in zip(prompts, letters, strict=True)]
            review = guard.review(batch)
            review = Review(review.verdicts, {}, factors, review.groups, review.labels)
            earned = guard.settle(rewards, review)
            row = [_plain(rewards), letters, prompts, factors, _plain(earned)]
            found.setdefault(f"{on_reject}, {on_abstain}", []).append(json.dumps(row))
    return found


def _plain(values: Sequence[float | None]) -> list[float | str | None]:
    """JSON has neither NaN nor infinities."""
    return [v if v is None or math.isfinite(v) else str(v) for v in values]
