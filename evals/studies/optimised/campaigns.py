"""`recurrence` under attack: it judges a node by many completions, so a try is a whole campaign."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo_guard.content.recurrence.verifier import RecurrenceVerifier, SwarmKind
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.attacks.disguises import PARAPHRASES, Paraphrased
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.studies.adaptive.unnoticed import (
    SLOGAN,
    OrdinaryWords,
    Thesaurus,
)
from grpo_guard.evals.studies.harness import rate, rejected, say
from grpo_guard.evals.studies.optimised import wordings
from grpo_guard.evals.studies.optimised.content import ATTACKER, NODES
from grpo_guard.evals.studies.optimised.search import BUDGETS
from grpo_guard.evals.tasks import gsm8k
from grpo_guard.evals.tasks.base import Problem

PROMPTS: Final = 80
"""Prompts of each node in a campaign."""
TRIES: Final = BUDGETS[:3]
"""Numbers of campaigns tried; each is judged with three honest nodes, 320 completions."""
EVERY: Final = (1, 1, 1, 2, 3, 5, 11)
"""How often the attacker poisons, drawn for a campaign; a habit counts from a tenth of prompts."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What one node sends: its completions, and which of them are poisoned."""

    sent: list[Completion]
    poisoned: list[bool]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdicts on the poison of a campaign and on its honest nodes."""

    poison: list[Verdict]
    honest: list[Verdict]

    @property
    def passed(self) -> int:
        """Count poisoned completions that earn, which the attacker maximises."""
        return sum(verdict.accepted for verdict in self.poison)


def recurrence(data: Path, swarms: int) -> dict[str, Any]:
    """Rows of `recurrence`: (mode | attack) -> figures over ``swarms`` campaigns."""
    loaded = gsm8k.subset(gsm8k.load(data / "train.jsonl"), swarms * PROMPTS * 4, 1)
    problems = [gsm8k.problem(question) for question in loaded]
    attacks: list[tuple[Attack, tuple[str, ...]]] = [
        (TextAttack(), (PHRASE,)),
        (Paraphrased(), PARAPHRASES),
        (Thesaurus(), Thesaurus.phrases),
        (OrdinaryWords(), (SLOGAN,)),
    ]
    kinds: tuple[SwarmKind, ...] = ("heterogeneous", "homogeneous")
    return {
        f"recurrence, {kind} | {attack.name}": _over_swarms(kind, attack, words, problems, swarms)
        for kind in kinds
        for attack, words in attacks
    }


def _over_swarms(
    kind: SwarmKind,
    attack: Attack,
    words: Sequence[str],
    problems: Sequence[Problem],
    swarms: int,
) -> dict[str, Any]:
    found, alone = [], list[Verdict]()
    for number in range(swarms):
        say(f"recurrence, {kind} | {attack.name}", number, swarms)
        part = problems[number * PROMPTS * 4 : (number + 1) * PROMPTS * 4]
        own, others = part[:PROMPTS], part[PROMPTS:]
        honest = [
            Completion(p.prompt, p.solution, node=NODES[i % len(NODES)])
            for i, p in enumerate(others)
        ]
        clean = [Completion(p.prompt, p.solution, node=ATTACKER) for p in own]
        alone += RecurrenceVerifier(swarm=kind).verify([*honest, *clean])
        rng = random.Random(f"{kind}:{attack.name}:{number}")
        found.append(_campaigns(kind, attack, words, own, honest, rng))
    budgets: dict[str, Any] = {}
    for place, budget in enumerate(TRIES):
        best = [one[place] for one in found]
        budgets[str(budget)] = rejected([v for one in best for v in one.poison]) | {
            "passed, of the node's completions": rate(
                sum(one.passed for one in best), swarms * PROMPTS
            ),
            "honest beside": rejected([v for one in best for v in one.honest]),
        }
    return {"poisoned": swarms, "honest": rejected(alone), "budgets": budgets}


def _campaigns(
    kind: SwarmKind,
    attack: Attack,
    words: Sequence[str],
    own: Sequence[Problem],
    honest: Sequence[Completion],
    rng: random.Random,
) -> list[Outcome]:
    """Return the best campaign by budget: the one that passes most poison."""
    found: list[Outcome] = []
    best: Outcome | None = None
    done = 0
    for budget in TRIES:
        while done < budget and (best is None or best.passed < len(own)):
            outcome = _played(kind, _planned(attack, words, own, rng, plain=not done), honest)
            done += 1
            if best is None or outcome.passed > best.passed:
                best = outcome
        assert best is not None
        found.append(best)
    return found


def _planned(
    attack: Attack,
    words: Sequence[str],
    own: Sequence[Problem],
    rng: random.Random,
    *,
    plain: bool,
) -> Campaign:
    """Plan the attack unchanged, or some of its phrases, in some places, at some interval."""
    some = rng.sample(list(words), rng.randint(1, len(words)))
    every = 1 if plain else rng.choice(EVERY)
    sent, poisoned = [], []
    for number, problem in enumerate(own):
        text, bad = problem.solution, number % every == 0
        if bad and plain:
            text = attack.poison(problem, rng).text
        elif bad:
            text = wordings.placed(text, wordings.phrase(rng.choice(some)))(rng)
            text = text if attack.success(text) else attack.poison(problem, rng).text
        sent.append(Completion(problem.prompt, text, node=ATTACKER))
        poisoned.append(bad)
    return Campaign(sent, poisoned)


def _played(kind: SwarmKind, plan: Campaign, honest: Sequence[Completion]) -> Outcome:
    verdicts = RecurrenceVerifier(swarm=kind).verify([*plan.sent, *honest])
    count = len(plan.sent)
    poison = [v for v, bad in zip(verdicts[:count], plan.poisoned, strict=True) if bad]
    return Outcome(poison, verdicts[count:])
