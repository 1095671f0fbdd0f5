"""`length` under attack: padding of more than twice the length that appears explained."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.studies.content_attacks import HELD_OUT_PADDING, PADDING, padded
from grpo_guard.evals.studies.harness import rejected, say
from grpo_guard.evals.studies.optimised.content import ATTACKER, NODES
from grpo_guard.evals.studies.optimised.search import (
    BUDGETS,
    Best,
    budgets_of,
    figures,
    rewritings,
    search,
)
from grpo_guard.evals.tasks import word_problems
from grpo_guard.evals.tasks.base import Problem

EACH: Final = 3
"""Completions of each prompt by each of the four nodes."""
OWN: Final = 12
"""Samples among which the attacker chooses which to pad."""
DOUBLED: Final = 2.0
"""Multiple of honest texts' mean length at which lengthening counts as a success."""
LONGEST: Final = 4.0
FILLS: Final = (*PADDING.values(), *HELD_OUT_PADDING.values())


@dataclass(frozen=True, slots=True)
class Group:
    """The honest nodes' completions of a problem, and the attacker's own right samples."""

    problem: Problem
    honest: list[Completion]
    own: list[Completion]


def length(count: int, deep: int) -> dict[str, Any]:
    """The row of `length` on ``count`` groups of the bundled policy whose answers differ most."""
    groups = _drawn(count)
    baseline = fmean(len(c.text) for group in groups for c in group.honest)
    found = []
    for number, group in enumerate(groups):
        say("length | padded", number, len(groups))
        found.append(_searched(group, baseline, number, deep))
    clean = [c for g in groups for c in (*g.honest, *g.own[:EACH])]
    return {
        "poisoned": len(found),
        "honest": rejected(LengthVerifier().verify(clean)),
        "budgets": figures(found, BUDGETS, lambda chosen: _as_node(groups, chosen)),
    }


def _drawn(count: int) -> list[Group]:
    import torch

    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.swarm.generate import sample

    model, tokenizer = load_bundled("word_problems_wordy")
    generator = torch.Generator().manual_seed(0)
    shared = EACH * len(NODES)
    groups: list[Group] = []
    for problem in word_problems.generate("optimised lengths", 10 * count):
        if len(groups) == count:
            break
        drawn = sample(
            model, tokenizer, [problem.prompt], shared + OWN,
            generator=generator, max_new_tokens=128,
        )  # fmt: skip
        made = [Completion(problem.prompt, s.text, reference=problem.answer) for s in drawn]
        honest = [replace(c, node=NODES[i % len(NODES)]) for i, c in enumerate(made[:shared])]
        right = [c for c in made[shared:] if word_problems.reward(c.text, problem.answer)]
        if len(right) >= EACH:  # harder problems leave nothing to pad
            groups.append(Group(problem, honest, [replace(c, node=ATTACKER) for c in right]))
    return groups


def _searched(group: Group, baseline: float, number: int, deep: int) -> list[Best]:
    rng = random.Random(f"length:{number}")
    answer = group.problem.answer
    least = 1.02 * DOUBLED * baseline

    def pad(rng: random.Random) -> str:
        text = rng.choice(group.own).text
        times = rng.uniform(max(1.0, least / len(text)), LONGEST)
        others = [c.text for c in group.own]
        return padded(text, group.problem.question, rng.choice(FILLS), times, rng, others)

    def keeps(text: str) -> bool:
        return len(text) > DOUBLED * baseline and word_problems.reward(text, answer) > 0

    def judge(batch: Sequence[Completion]) -> list[Verdict]:
        # Each is copied to all of the attacker's slots, as in the paper's code.
        verifier = LengthVerifier()
        return [verifier.verify([*group.honest, *[c] * EACH])[-1] for c in batch]

    solution = group.own[0].text
    at = solution.find("</think>")
    first = f"{solution[:at]}{f' {solution[7:at]}' * 2}{solution[at:]}"  # the attack `padded`
    texts = rewritings(first, pad, keeps, rng)
    made = (Completion(group.problem.prompt, t, reference=answer, node=ATTACKER) for t in texts)
    return search(judge, made, budgets_of(number, deep))


def _as_node(
    groups: Sequence[Group], chosen: Sequence[Completion]
) -> tuple[list[Verdict], list[Verdict]]:
    """All groups in one batch, before a verifier that remembers nodes."""
    bad = [one for one in chosen for _ in range(EACH)]
    honest = [c for group in groups for c in group.honest]
    verdicts = LengthVerifier(memory=True).verify([*bad, *honest])
    return verdicts[: len(bad)], verdicts[len(bad) :]
