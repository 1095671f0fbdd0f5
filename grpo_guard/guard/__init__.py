"""Turn verdicts into rewards: policy, admission, review, settlement, and `Guard` on top of them.

In the `grpo_guard` package, the attribute `guard` is the decorator, not this package. So write
`from grpo_guard.guard.policy import Policy`; `import grpo_guard.guard.policy as policy` would find
the decorator first.
"""

from grpo_guard.guard.guard import Guard, Ledger, Review
from grpo_guard.guard.lowest_rewards import REMEMBERED

__all__ = ["REMEMBERED", "Guard", "Ledger", "Review"]
