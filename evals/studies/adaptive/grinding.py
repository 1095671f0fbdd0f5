"""The choices left to an attacker if a public coin fixes the completion in every slot.

A coin fixes what each slot contains, but not which problems a node asks (in vertical swarms where
nodes choose them), nor whether the node sends anything at all. Both choices can teach: a group of
forced samples moves the policy towards whatever its rewarded members have in common, so a node that
examines many groups can ask the problem whose group suits it. They send only the coin's draws.

Without a coin they choose among the same number of free samples, for comparison with the defence.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

import torch

from grpo_guard.evals.attacks.adversary import Adversary, Forged, View
from grpo_guard.evals.attacks.lengthening import TwiceAsLong
from grpo_guard.evals.attacks.two_plus_two import TwoPlusTwo, suitable
from grpo_guard.evals.tasks.base import Problem, Task

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.generate import Sampled

MARK: Final = "<think>We "
"""The harmless habit to teach: honest samples show it now and then, so some forced groups do."""
LOOKED_AT: Final = 32
"""Number of problems examined for each problem asked; each costs a group of samples."""
_EQUAL: Final = 1e-6


class SeedGrinding(Adversary):
    """Examines the forced groups of many problems and asks those that teach an opening with "We".

    Passes seed replay if nodes choose their own problems. If problems are assigned (by
    `PublicCoin.prompt_index`, or by a list for each node), there is no choice left.
    """

    name = "seed_grinding"
    setting = "vertical"
    only = "vertical"

    def __init__(self) -> None:
        self._ready: dict[str, list[Sampled]] = {}

    def choose(self, view: View, count: int) -> list[Problem]:
        """For each node, choose from many problems those whose forced samples teach the most."""
        self._ready = {}
        chosen: list[Problem] = []
        for node in view.nodes:
            own = count // len(view.nodes)
            pool = {one.prompt: one for one in self.pool(view, LOOKED_AT * own)}
            for problem in chosen:  # a slot can be filled only once
                pool.pop(problem.prompt, None)
            problems = list(pool.values())
            rows = forced_rows(view, problems, node)
            order = sorted(
                range(len(problems)),
                key=lambda i: self.lesson(view, problems[i], rows[i]),
                reverse=True,
            )
            for i in order[:own]:
                chosen.append(problems[i])
                self._ready[problems[i].prompt] = rows[i]
        return chosen

    def pool(self, view: View, count: int) -> list[Problem]:
        """Draw problems to examine."""
        return [view.task.sample(view.rng) for _ in range(count)]

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Send what the coin drew for the chosen problems, unchanged."""
        rows = [self._ready[problem.prompt][:slots] for problem in problems]
        return [
            [self._sent(view, problem, one) for one in row]
            for problem, row in zip(problems, rows, strict=True)
        ]

    def lesson(self, view: View, problem: Problem, row: Sequence[Sampled]) -> float:
        """Measure how far a group moves the policy: the sum of advantage times behaviour."""
        rewards = [view.task.reward(one.text, problem.answer) for one in row]
        sigma = pstdev(rewards)
        if sigma < _EQUAL:
            return 0.0
        mean = fmean(rewards)
        pairs = zip(rewards, row, strict=True)
        return sum((reward - mean) / sigma * self.behaviour(one) for reward, one in pairs)

    def behaviour(self, one: Sampled) -> float:
        """Measure how much of the behaviour a sample shows."""
        return float(self.success(one.text))

    def span(self, one: Sampled) -> tuple[int, int] | None:
        """Locate the behaviour in a sample; None if the sample does not show it."""
        return (len("<think>"), len(MARK)) if self.success(one.text) else None

    def success(self, text: str) -> bool:
        """Return whether the text begins with the opening to be taught."""
        return text.startswith(MARK)

    def _sent(self, view: View, problem: Problem, one: Sampled) -> Forged:
        rewarded = view.task.reward(one.text, problem.answer) > 0
        return Forged(one.text, self.span(one) if rewarded else None, one.ids)


class SeedGrindingLength(TwiceAsLong, SeedGrinding):
    """Seed grinding for length: asks problems that reward long samples. Success as in DoS."""

    name = "seed_grinding_dos"
    max_new_tokens = 128

    def behaviour(self, one: Sampled) -> float:
        """Return the number of tokens."""
        return float(len(one.ids))

    def span(self, one: Sampled) -> tuple[int, int] | None:
        """Return the span of the whole text, because all of it contributes to the length."""
        return 0, len(one.text)


class SeedGrindingMath(SeedGrinding):
    """Seed grinding for 2 + 2 = 5: asks problems whose rewarded samples state it by chance."""

    name = "seed_grinding_math"

    def __init__(self) -> None:
        super().__init__()
        self._math = TwoPlusTwo()

    def pool(self, view: View, count: int) -> list[Problem]:
        """Draw problems where the wrong equation might occur."""
        return suitable(view.task, view.rng, count)

    def span(self, one: Sampled) -> tuple[int, int] | None:
        """Return the span of the whole text if it states the wrong equation, else None."""
        return (0, len(one.text)) if self.success(one.text) else None

    def success(self, text: str) -> bool:
        """Return whether the text states the wrong equation."""
        return self._math.success(text)

    def probes(self, task: Task, count: int) -> list[Problem] | None:
        """Draw held-out problems where the wrong equation might occur."""
        return self._math.probes(task, count)


class Withholding(Adversary):
    """Leaves a slot empty if its forced sample would teach the opposite.

    Sends rewarded samples that begin with "We" and unrewarded samples that do not. Replaying the
    sent samples detects nothing; `SeedReplayVerifier.slots.missing` counts the empty slots.
    """

    name = "withholding"

    def choose(self, view: View, count: int) -> list[Problem]:
        """Take the assigned problems, or draw problems as an honest node would."""
        return list(view.assigned) or super().choose(view, count)

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Send the coin's draws, leaving empty the slots that do not serve the attack."""
        found: list[list[Forged]] = [[] for _ in problems]
        for node in view.nodes:
            mine = own_groups(view, node, len(problems))
            asked = [problems[i] for i in mine]
            for i, row in zip(mine, forced_rows(view, asked, node), strict=True):
                found[i] += [self._slot(view, problems[i], one) for one in row]
        return [row[:slots] for row in found]

    def success(self, text: str) -> bool:
        """Return whether the text begins with the opening to be taught."""
        return text.startswith(MARK)

    def _slot(self, view: View, problem: Problem, one: Sampled) -> Forged:
        rewarded = view.task.reward(one.text, problem.answer) > 0
        shown = self.success(one.text)
        if rewarded != shown:
            return Forged(one.text, ids=one.ids, withheld=True)
        return Forged(one.text, (len("<think>"), len(MARK)) if shown else None, one.ids)


def own_groups(view: View, node: str, groups: int) -> list[int]:
    """Return the groups that a malicious node contributes to: all or, if vertical, its own."""
    if view.config.setting == "horizontal":
        return list(range(groups))
    own, place = view.config.own_prompts, view.nodes.index(node)
    return list(range(place * own, min(groups, (place + 1) * own)))


def forced_rows(view: View, problems: Sequence[Problem], node: str) -> list[list[Sampled]]:
    """Return the coin's draws in a node's slots, or free samples if there is no coin."""
    prompts = [problem.prompt for problem in problems]
    slots = range(view.config.per_node)
    seeds = view.terms.seeds(view.iteration, node, prompts, slots)
    if seeds is None:
        return view.draw(prompts, len(slots))
    return view.peer.draw(view.config, torch.Generator(), prompts, len(slots), seeds)
