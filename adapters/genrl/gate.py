"""GenRL: where foreign trees come in, and which of them do.

Inside a group GenRL leaves nothing out, so what a tree may not teach has to stay outside. A tree
has one author, who mixes poison with bad completions to make it stand out; one proven completion
condemns it all. What could not be looked at stays outside, too: nothing is owed to a stranger.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_guard.adapters.genrl.trees import Form, Tree, offered
from grpo_guard.policy import Policy
from grpo_guard.review import Review
from grpo_guard.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Admission:
    """Which foreign trees are taken in.

    Args:
        rejected: Largest share of a tree's completions that may be rejected or not looked at. Such
            a tree comes in, its rejected completions earn what the policy says, and whatever of its
            author's work went unnoticed comes along. 0: all must be accepted, so that honest trees
            are lost G times as often as honest completions are rejected.
        trees: How many a node looks at in a stage, one of each agent in turn, in random order: who
            sends more, or under more names, must not choose how long the guard takes.
        per_agent: How many an agent may send in a stage; None = as many as this node does.

    Raises:
        ValueError: an argument is out of range.
    """

    rejected: float = 0.4
    trees: int = 64
    per_agent: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rejected < 1:
            raise ValueError(
                f"Admission.rejected: expected a number in [0, 1), got {self.rejected!r}"
            )
        for name, value in (("trees", self.trees), ("per_agent", self.per_agent)):
            if value is not None and value < 1:
                raise ValueError(f"Admission.{name}: expected an integer >= 1, got {value!r}")

    def drawn(self, swarm: Mapping[Any, Any], form: Form, known: Iterable[Any]) -> list[Tree]:
        """The trees that are looked at.

        Args:
            swarm: agent -> {batch: [Payload]}, without this node's own.
            form: Of the game.
            known: Keys of trees that came earlier.
        """
        each = self.per_agent or max(1, len(form.own))
        agents = list(swarm.items())
        random.shuffle(agents)
        waiting = deque(offered(item, form, frozenset(known), each) for item in agents)
        drawn: list[Tree] = []
        while waiting and len(drawn) < self.trees:
            # Nobody's second before everybody's first, and nothing is read that is not looked at.
            turn = waiting.popleft()
            if (tree := next(turn, None)) is not None:
                drawn.append(tree)
                waiting.append(turn)
        return drawn

    def taken(
        self, trees: Sequence[Tree], form: Form, found: Sequence[Review], policy: Policy, room: int
    ) -> list[Tree]:
        """The trees that come in.

        GenRL's loss is a mean over the tokens of a minibatch: of one without any it is 0 / 0, and
        with it all weights are NaN. So there is room for fewer completions without a token than the
        smallest minibatch has completions, whoever sends them.

        Args:
            trees: Those that were looked at.
            form: Of the game.
            found: What was found in each.
            policy: Of the guard.
            room: For completions without a token.
        """
        taken = []
        for tree, of_tree in zip(trees, found, strict=True):
            usable = tree.problem is None  # what only watches takes all that GenRL can train on
            if usable if policy.watches else self.admits(of_tree.verdicts, policy.on_abstain):
                empty = form.tokenless(tree)
                if not empty or empty <= room:
                    room -= empty
                    taken.append(tree)
        return taken

    def admits(self, verdicts: Sequence[Verdict], on_abstain: Any) -> bool:
        """Whether a tree with these verdicts comes in."""
        passing = [v.accepted or (v.abstained and on_abstain == "pass") for v in verdicts]
        return bool(passing) and passing.count(False) <= self.rejected * len(passing)


def prompted(
    data: Any, own: Sequence[Tree], foreign: Sequence[Tree], stage: int
) -> tuple[list[Tree], list[Tree]]:
    """The trees with what the trainer will condition on, as the node's own data manager says it.

    It is asked about all trees at once, since that is what the training step does with those that
    come in: a column of texts in which one peer has put a number raises there, and nobody learns.
    Where it cannot render all, each foreign tree has to go together with those before it.

    Raises:
        Exception: of the data manager, for the node's own trees.
    """
    usable = [tree for tree in foreign if tree.problem is None]
    try:
        found = _rendered(data, [*own, *usable], stage)
    except Exception:
        found, together = _rendered(data, own, stage), list(own)
        for tree in usable:
            try:
                found = _rendered(data, [*together, tree], stage)
                together.append(tree)
            except Exception as error:
                problem = f"world_state: the data manager cannot use it: {type(error).__name__}"
                foreign = [replace(t, problem=problem) if t is tree else t for t in foreign]
    return [found[tree] for tree in own], [found.get(tree, tree) for tree in foreign]


def _rendered(data: Any, trees: Sequence[Tree], stage: int) -> dict[Tree, Tree]:
    """Each tree with its prompt."""
    states: dict[Any, dict[Any, list[Any]]] = {}
    places: dict[tuple[Any, Any, int], Tree] = {}
    for tree in trees:
        row = states.setdefault(tree.agent, {}).setdefault(tree.batch, [])
        places[tree.agent, tree.batch, len(row)] = tree
        row.append(tree.payload.world_state)
    rows, mapping = data.prepare_input(states, stage)
    prompts = rows["prompt"]
    found = {places[agent, batch, n]: prompts[i] for i, (agent, batch, n) in mapping.items()}
    return {tree: replace(tree, prompt=found[tree]) for tree in trees}
