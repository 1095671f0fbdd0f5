"""From verdicts to rewards: policy, admission, review, settlement, and `Guard` over them.

As an attribute, `grpo_guard.guard` is the decorator. So write `from grpo_guard.guard.policy import
Policy`; `import grpo_guard.guard.policy as policy` finds the function first.
"""

from grpo_guard.guard.guard import Guard, Ledger, Review
from grpo_guard.guard.lowest_rewards import REMEMBERED

__all__ = ["REMEMBERED", "Guard", "Ledger", "Review"]
