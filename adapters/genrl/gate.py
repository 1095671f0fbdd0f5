"""GenRL: decide which foreign trees are admitted.

GenRL cannot leave out part of a group, so a tree that must not be learned from has to be kept out
entirely. A tree has a single author, and an attacker mixes poison with bad completions to give the
poison a high advantage; so if too many completions are rejected (`Admission.rejected`), the whole
tree is kept out. Completions that could not be judged count against a tree as well, because
strangers have no right to be admitted.
"""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_guard.adapters.genrl.trees import Form, Tree, offered
from grpo_guard.core.arguments import require_count
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.review import Review


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules by which foreign trees are admitted.

    Args:
        rejected: Maximum share of a tree's completions that may be rejected or not judged. In an
            admitted tree, rejected completions earn what the policy says, and any poison that went
            unnoticed is admitted along with the rest. At 0, all completions must be accepted, so
            honest trees are lost G times as often as honest completions are rejected.
        trees: Maximum number of trees that a node reads in a stage, one from each agent in turn, in
            random order, so that an agent cannot control the guard's run time by sending more trees
            or using more names.
        per_agent: Maximum number of trees that an agent may send in a stage; None for as many as
            this node sends.

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
            if value is not None:
                require_count(f"Admission.{name}", value)

    def drawn(self, swarm: Mapping[Any, Any], form: Form, known: Iterable[Any]) -> list[Tree]:
        """Draw the trees to judge from peers' payloads, ``{agent: {batch: [Payload]}}``; ``known``
        are the keys of trees that arrived earlier."""
        each = self.per_agent or max(1, len(form.own))
        agents = list(swarm.items())
        random.shuffle(agents)
        waiting = deque(offered(item, form, frozenset(known), each) for item in agents)
        drawn: list[Tree] = []
        while waiting and len(drawn) < self.trees:
            # One tree from each agent before anyone's second; only trees to judge are read.
            turn = waiting.popleft()
            if (tree := next(turn, None)) is not None:
                drawn.append(tree)
                waiting.append(turn)
        return drawn

    def taken(
        self, trees: Sequence[Tree], form: Form, found: Sequence[Review], policy: Policy, room: int
    ) -> list[Tree]:
        """Choose the trees to admit from the judged ``trees``, whose reviews are ``found``.

        GenRL's loss is a mean over the tokens of a minibatch: without any token it is 0 / 0, and
        all weights become NaN. So completions without a token must be fewer than the completions of
        the smallest minibatch, no matter who sends them; ``room`` is the number of such completions
        that can still be admitted.
        """
        taken = []
        for tree, of_tree in zip(trees, found, strict=True):
            usable = tree.problem is None  # a guard that watches admits all GenRL can train on
            if usable if policy.watches else self.admits(of_tree.verdicts, policy.on_abstain):
                empty = form.tokenless(tree)
                if not empty or empty <= room:
                    room -= empty
                    taken.append(tree)
        return taken

    def admits(self, verdicts: Sequence[Verdict], on_abstain: Any) -> bool:
        """Whether a tree with these verdicts is admitted."""
        passing = [v.accepted or (v.abstained and on_abstain == "pass") for v in verdicts]
        return bool(passing) and passing.count(False) <= self.rejected * len(passing)


def prompted(
    data: Any, own: Sequence[Tree], foreign: Sequence[Tree], stage: int
) -> tuple[list[Tree], list[Tree]]:
    """Fill in the prompts that the trainer will condition on, from the node's own data manager,
    whose errors for the node's own trees are raised.

    It renders all trees at once, as the training step does with the admitted ones: if a peer has
    put a number into a text column, the training step raises, and the node learns nothing. If that
    fails, foreign trees are added one at a time, and a tree that makes the rendering fail is marked
    with a problem.
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
    """Map each tree to a copy of it that has its prompt."""
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
