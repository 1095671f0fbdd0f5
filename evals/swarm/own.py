"""What a node can do that trusts its own samples more than those of others."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from grpo_guard.content.answers import numbers_in, tagged
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.record import Submitted
from grpo_guard.evals.tasks.base import Task


def local_share(
    submitted: Sequence[Submitted], own: str, config: SwarmConfig, rng: random.Random
) -> list[Submitted]:
    """The round as a node sees it that trains on all of its own and a random part of the others'.

    After SAPO (arXiv 2509.08721): a training set of I local and J external rollouts, J such that
    I is ``config.local_share`` of both. Horizontal: among the completions of each group. Vertical:
    among whole groups. What is not drawn counts as withheld. Simplified: SAPO leaves out external
    groups without advantage before it draws; here all are drawn from alike.
    """
    share, size = config.local_share, config.group_size
    vertical = config.setting == "vertical"
    units: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for place, item in enumerate(submitted):
        units[0 if vertical else place // size, item.completion.node == own].append(place)
    drawn = set[int]()
    for (unit, mine), places in units.items():
        if mine:
            drawn.update(places)
            continue
        sent = [place for place in places if not submitted[place].withheld]
        wanted = round(len(units.get((unit, True), ())) * (1 - share) / share)
        if vertical:
            groups = sorted({place // size for place in sent})
            chosen = rng.sample(groups, min(len(groups), wanted // size))
            drawn.update(place for place in sent if place // size in chosen)
        else:
            drawn.update(rng.sample(sent, min(len(sent), wanted)))
    return [
        item if place in drawn else replace(item, withheld=True)
        for place, item in enumerate(submitted)
    ]


def own_majority(submitted: Sequence[Submitted], own: str, task: Task) -> list[float]:
    """Rewards by vote: right is the answer that most of a node's own samples of the prompt give.

    The first given wins a tie. Without a sample of its own that gives a number in ``<answer>``,
    nothing in a group is right: so are the groups of others in the vertical setting, and tasks that
    ask for programs. As in training without references (TTRL, arXiv 2504.16084), but that the votes
    of others do not count.
    """
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in submitted:
        if item.completion.node == own and not item.withheld:
            said = _answer(item.completion.text)
            if said is not None:
                votes[item.completion.prompt_text][said] += 1
    winners = {prompt: count.most_common(1)[0][0] for prompt, count in votes.items()}
    return [
        task.reward(item.completion.text, winners[item.completion.prompt_text])
        if item.completion.prompt_text in winners
        else 0.0
        for item in submitted
    ]


def _answer(text: str) -> str | None:
    """The first number of the first answer block."""
    for block in tagged(text):
        for number in numbers_in(block.content):
            return str(number if number.denominator == 1 else float(number))
    return None
