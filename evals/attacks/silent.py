"""No attack: what the honest nodes reach without the malicious ones."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_guard.evals.attacks.adversary import Adversary, Forged, View
from grpo_guard.evals.tasks.base import Problem


class Silent(Adversary):
    """Leaves every slot empty: the run that others are compared with.

    A guard that rejects all poison and nothing else leaves a swarm only the honest nodes'
    completions, and so does this. Compared with nodes that are *all* honest, a guarded run would
    also lack a share of its data, and the guard would not be the cause of the difference.
    """

    name = "silent"

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Withhold every slot."""
        return [[Forged("", withheld=True)] * slots for _ in problems]

    def choose(self, view: View, count: int) -> list[Problem]:
        """Take what the coin assigns, or draw problems like an honest node."""
        return list(view.assigned) or super().choose(view, count)

    def success(self, text: str) -> bool:
        """Return False: there is no behaviour to be taught."""
        return False
