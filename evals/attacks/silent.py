"""No attack: the baseline reached by the honest nodes without the malicious ones."""

from collections.abc import Sequence

from grpo_guard.evals.attacks.adversary import Adversary, Forged, View
from grpo_guard.evals.tasks.base import Problem


class Silent(Adversary):
    """Leaves every slot empty: the baseline that other runs are compared with.

    A guard that rejects all poison and nothing else leaves a swarm with only the honest nodes'
    completions, and so do silent malicious nodes. If a guarded run were instead compared with a run
    whose nodes are *all* honest, it would also have less data, which is not the guard's doing.
    """

    name = "silent"

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Withhold every slot."""
        return [[Forged("", withheld=True)] * slots for _ in problems]

    def choose(self, view: View, count: int) -> list[Problem]:
        """Take the problems that the coin assigns, or draw problems as an honest node would."""
        return list(view.assigned) or super().choose(view, count)

    def success(self, text: str) -> bool:
        """Return False: there is no behaviour to be taught."""
        return False
