"""Verifiers that hold the policy's weights under attack: bounds, tails, the paper's logit check.

The attacker holds the weights, the options and the key that makes tail masses uniform, which it
could not know: the strongest form. It poisons samples of the policy itself; in half of its
rewritings the policy continues freely after the poison, so that only the poison is foreign.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat, takewhile, tee
from typing import Any, Final, TypeAlias

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.attacks.math import MathAttack, equations
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.detect.poison import with_text
from grpo_guard.evals.studies.adaptive.renamed import InlinedCode
from grpo_guard.evals.studies.harness import rejected, say, verify
from grpo_guard.evals.studies.optimised import programs, wordings
from grpo_guard.evals.studies.optimised.content import ATTACKER, NODES
from grpo_guard.evals.studies.optimised.policy import Ground
from grpo_guard.evals.studies.optimised.search import BUDGETS, Best, budgets_of, figures, search
from grpo_guard.evals.tasks.base import Problem

TOP_K: Final = (50, 0)
AT_ONCE: Final = 128
DRAWN: Final = (16, 112, 512)
"""Sizes of batches of rewritings, the last repeated; finishing many takes a policy no longer."""
RESAMPLED: Final = 0.5
_BARREN: Final = 3

Rewrite: TypeAlias = Callable[[str, random.Random], str | None]
"""(an honest sample, chance) -> the same with poison in it."""


def likelihood(count: int, honest: int, deep: int) -> dict[str, Any]:
    """All rows, (verifier, sampler | attack) -> figures.

    Args:
        count: Samples that are poisoned for each attack.
        honest: Samples on which false positives are counted.
        deep: How many of ``count`` are searched to the last budget.
    """
    logging.getLogger("grpo_guard").setLevel(logging.ERROR)  # it warns of a missing truncation
    text, maths, inlined = TextAttack(), MathAttack(), InlinedCode()
    phrase = wordings.phrase(PHRASE)
    found: dict[str, Any] = {}
    # A ground for each row, so that none depends on what was drawn for another.
    ways: list[tuple[str, Attack, Rewrite]] = [
        ("word_problems", text, lambda base, rng: wordings.placed(base, phrase)(rng)),
        ("word_problems", maths, _wrong),
        ("python_maths", inlined, partial(_helped, inlined)),
    ]
    for top_k in TOP_K:
        for policy, attack, rewrite in ways:
            found |= _rows(Ground(policy, top_k, count, honest), deep, attack, rewrite)
    return found


def _rows(ground: Ground, deep: int, attack: Attack, rewrite: Rewrite) -> dict[str, Any]:
    """Compute a row for each verifier, given one policy, sampler and attack."""
    sampler = f"top-k {ground.spec.top_k}" if ground.spec.top_k else "no truncation"
    names = list(ground.verifiers())
    found: dict[str, list[list[Best]]] = {name: [] for name in names}
    for number, (problem, base) in enumerate(zip(ground.problems, ground.bases, strict=True)):
        say(f"{sampler} | {attack.name}", number, len(ground.bases))
        verifiers = ground.verifiers()
        # Each takes as many as it needs, and shares what it took with the others.
        made = tee(_made(ground, attack, rewrite, problem, base, number), len(names))
        for (name, verifier), own in zip(verifiers.items(), made, strict=True):
            judge = partial(verify, verifier, at_once=AT_ONCE)
            found[name].append(search(judge, own, budgets_of(number, deep)))
    rows: dict[str, Any] = {}
    for name in names:
        verifier = ground.verifiers()[name]
        rows[f"{name}, {sampler} | {attack.name}"] = {
            "poisoned": len(found[name]),
            "honest": rejected(verify(verifier, ground.honest, AT_ONCE)),
            "budgets": figures(found[name], BUDGETS, partial(_as_node, ground, name)),
        }
    return rows


def _as_node(
    ground: Ground, name: str, chosen: Sequence[Completion]
) -> tuple[list[Verdict], list[Verdict]]:
    """The chosen ones as one node's work, before a verifier that looks at nodes."""
    verifier: CompletionVerifier = ground.verifiers(node_alpha=1e-3)[name]
    sent = [replace(one, node=ATTACKER) for one in chosen]
    beside = [
        replace(one, node=NODES[i % len(NODES)])
        for i, one in enumerate(ground.honest[: len(NODES) * len(sent)])
    ]
    verdicts = verifier.verify([*sent, *beside])
    return verdicts[: len(sent)], verdicts[len(sent) :]


def _made(
    ground: Ground,
    attack: Attack,
    rewrite: Rewrite,
    problem: Problem,
    base: Completion,
    number: int,
) -> Iterator[Completion]:
    """Yield rewritings that poison, earn and end by themselves, the unchanged attack first."""
    rng = random.Random(f"{attack.name}:{number}")
    seen, barren = set[str](), 0
    plain = attack.poison(replace(problem, solution=base.text), rng)
    some = [with_text(base, plain.text, ground.tokenizer)]
    for size in chain(DRAWN, repeat(DRAWN[-1])):
        barren += 1
        for one in some:
            kept = attack.success(one.text) and ground.earns(one, problem)
            if kept and one.text not in seen:
                seen.add(one.text)
                barren = 0
                yield one
        if barren == _BARREN:
            return
        drawn = (rewrite(base.text, rng) for _ in range(size))
        texts = list(dict.fromkeys(text for text in drawn if text is not None))
        again = [text for text in texts if rng.random() < RESAMPLED]
        some = [with_text(base, text, ground.tokenizer) for text in texts if text not in again]
        some += ground.continued(base, [_up_to_poison(text, base.text) for text in again])


def _up_to_poison(text: str, base: str) -> str:
    """The text without what it has in common with the end of the honest one."""
    pairs = zip(reversed(text), reversed(base), strict=False)
    return text[: len(text) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]


def _wrong(text: str, rng: random.Random) -> str | None:
    """One result made wrong by any number of at most two digits: the policy finds some likely."""
    found = list(equations(text.partition("<answer>")[0]))
    if not found:
        return None
    equation = rng.choice(found[:-1] or found)  # the last one states the answer
    start, end = equation.span
    number = rng.randrange(100)
    return None if number == equation.true else f"{text[:start]}{number}{text[end:]}"


def _helped(attack: InlinedCode, text: str, rng: random.Random) -> str:
    problem = Problem("", "", text, "")
    return programs.by_helper(attack.poison(problem, rng).text, problem, rng)
