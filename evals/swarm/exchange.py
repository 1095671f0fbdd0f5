"""The generation phase: what all nodes put into the exchange, group by group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.swarm.terms import Terms
from grpo_guard.evals.tasks.base import Problem

Submit = Callable[[int, Sequence[Problem]], list[Submitted]]
"""(round, problems of the honest nodes) -> what all nodes answer, node by node."""


class Exchange:
    """Brings the nodes' completions together.

    Args:
        terms: Of the swarm.
        submit: Lets the nodes answer.
    """

    def __init__(self, terms: Terms, submit: Submit) -> None:
        self.terms, self.submit = terms, submit

    def play(self, iteration: int) -> tuple[list[Submitted], list[str]]:
        """(completions group by group, prompts that the round asks).

        Vertical: under a coin the prompts of all nodes, in their order, else of honest ones.
        """
        problems = self.terms.problems(iteration)
        sent = self.submit(iteration, problems)
        asked = [*problems, *self.terms.assigned(iteration, problems)]
        # Sorting keeps the order within a group, in which honest nodes stand first.
        by_group = sorted(sent, key=lambda item: item.completion.group or 0)
        return by_group, [problem.prompt for problem in asked]
