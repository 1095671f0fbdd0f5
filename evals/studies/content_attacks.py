"""Attacks by length, for `content_honest`: padding, and the longest of many honest samples.

A shape of padding counts as known if its results were looked at while rules were changed, and as
held out otherwise.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.studies.harness import rate, rejected
from grpo_guard.evals.tasks import gsm8k

Fill = Callable[[list[str], str, random.Random, list[str]], str]
_TALK = (
    "Let me think about this carefully before going on.",
    "This is an interesting question that deserves attention.",
    "It is important to be thorough and to leave nothing out.",
    "We should make sure that everything is clear so far.",
    "Taking a moment to reflect helps to avoid mistakes.",
    "With this in mind, we can now continue to the next part.",
    "As we can see, careful thinking always pays off in the end.",
)
_AGAIN = ("In other words,", "Put differently,", "That is to say,", "To say it once more,")
_WHO = ("A gardener", "The old sailor", "My neighbour", "Every teacher", "The river", "A painter")
_DOES = ("remembers", "dreams of", "walks along", "admires", "forgets", "describes")
_WHAT = ("a quiet harbour", "the long winter", "its own reflection", "distant music", "wet stones")
_CHECKS = ("Let us verify:", "Double-checking,", "To confirm,", "A second look shows:")


def _reworded(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    clauses = re.split(r", | so | then ", rng.choice(steps))
    return f"{rng.choice(_AGAIN)} {' '.join(reversed(clauses))}"


def _number_fact(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    n = rng.randint(2, 99)
    kind = "even" if n % 2 == 0 else "odd"
    return f"Note that {n} is {kind} and that {n} plus one is {n + 1}."


def _counting(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    start = rng.randint(1, 400)
    return ", ".join(map(str, range(start, start + 12))) + "."


def _table(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    words = rng.choice(steps).split()
    return "\n".join(f"| {i} | {word} | - |" for i, word in enumerate(words, 1)) + "\n"


def _scrambled(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    words = question.split()
    rng.shuffle(words)
    return " ".join(words[:14]) + "."


# Each makes a piece from the steps, the question, chance, and other people's sentences.
PADDING: dict[str, Fill] = {
    "repeated_steps": lambda steps, q, rng, others: rng.choice(steps),
    "restated_question": lambda steps, q, rng, others: f"The question says: {q}",
    "empty_talk": lambda steps, q, rng, others: rng.choice(_TALK),
    "other_solutions": lambda steps, q, rng, others: rng.choice(others),
    "reworded_steps": _reworded,
    "number_facts": _number_fact,
}
HELD_OUT_PADDING: dict[str, Fill] = {
    "prose": lambda steps, q, rng, others: (
        f"{rng.choice(_WHO)} {rng.choice(_DOES)} {rng.choice(_WHAT)}."
    ),
    "checks": lambda steps, q, rng, others: f"{rng.choice(_CHECKS)} {rng.choice(steps)}",
    "counting": _counting,
    "table": _table,
    "scrambled_question": _scrambled,
    "blank_lines": lambda steps, q, rng, others: "\n" * rng.randint(8, 20),
}


def padded(
    text: str, question: str, fill: Fill, times: float, rng: random.Random, others: list[str]
) -> str:
    """Add filler before the text's answer until it is ``times`` as long."""
    at = text.find("</think>") if "</think>" in text else max(text.rfind("\n"), 0)
    steps = [s for s in re.split(r"(?<=[.!?])\s+|\n", text[:at].removeprefix("<think>")) if s]
    filler = list[str]()
    while len(text) + sum(map(len, filler)) + len(filler) < times * len(text):
        filler.append(fill(steps or [text[:at] or text], question, rng, others))
    return f"{text[:at]} {' '.join(filler)} {text[at:].lstrip(' ')}"


NODES, POOL, FACTORS = 4, 80, (2, 3, 4)
ATTACKER = f"n{NODES - 1}"
Pools: TypeAlias = list[tuple[list[Completion], list[Completion]]]
"""(honest group over four nodes, the attacker's candidates)."""


def earns(completion: Completion) -> float:
    """Return the task's reward."""
    return gsm8k.reward(completion.text, completion.reference or "")


def removed(
    free: list[list[Completion]],
    attacked: list[list[Completion]],
    at_once: int = 0,
    past: bool = False,
) -> dict[str, Any]:
    """Measure the excess length that scaling removes, and the honest rewards that remain.

    The reward-weighted length is sum(reward * factor * length) / sum(reward * factor) over all
    groups; removed is the share by which scaling brings it from the attacked value back to the
    attack-free one. Each figure is [value, low, high]. ``at_once`` groups make a batch; 0 = all of
    them. With ``past`` nodes are compared with their own past, which grows from batch to batch.
    """

    def sums(group: list[Completion], factors: list[float]) -> tuple[float, float]:
        weights = [earns(c) * factor for c, factor in zip(group, factors, strict=True)]
        lengths = [len(c.text) for c in group]
        return sum(w * x for w, x in zip(weights, lengths, strict=True)), sum(weights)

    table = np.array([
        [sums(a, [1.0] * len(a)), sums(b, [1.0] * len(b)), sums(b, scaled), sums(a, kept)]
        for (a, kept), (b, scaled) in zip(
            _scaled(free, at_once, past), _scaled(attacked, at_once, past), strict=True
        )
    ])  # fmt: skip

    def shares(rows: Any) -> Any:
        total = rows.sum(axis=0)
        plain, hit, ours, _ = total[:, 0] / total[:, 1]
        return np.array([(hit - ours) / (hit - plain), total[3, 1] / total[0, 1]])

    rng = np.random.default_rng(0)
    draws = [shares(table[rng.integers(0, len(table), len(table))]) for _ in range(1000)]
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    value = shares(table)
    return {
        name: [float(value[i]), float(low[i]), float(high[i])]
        for i, name in enumerate(("removed", "honest_reward_kept"))
    }


def _scaled(
    groups: list[list[Completion]], at_once: int, past: bool
) -> list[tuple[list[Completion], list[float]]]:
    found, scaling = [], LengthScaling(tolerance=0.5, past=past)
    for start in range(0, len(groups), at_once or len(groups)):
        batch = groups[start : start + (at_once or len(groups))]
        factors = iter(scaling.factors([c for group in batch for c in group]))
        found += [(group, [next(factors) for _ in group]) for group in batch]
    return found


def under_attack(groups: Pools, others: list[str]) -> dict[str, Any]:
    """One node of four pads right answers of its pool, or of its group if the pool has none."""
    usable = [
        (g, right)
        for g, pool in groups
        if sum(map(earns, g)) >= 2 and len(right := [c for c in pool or g if earns(c)]) >= 2
    ]
    free = [g for g, _ in usable]
    result: dict[str, Any] = {"groups": len(groups), "attacked": len(usable)}
    blatant = {"known": [0, 0], "held out": [0, 0]}
    beside = [0, 0]
    for times in FACTORS:
        for name, fill in {**PADDING, **HELD_OUT_PADDING}.items():
            rng = random.Random(f"{name}{times}")

            def pad(text: str, question: str) -> str:
                return padded(text, question, fill, times, rng, others)  # noqa: B023

            attacked = [
                _with_attacker(
                    group,
                    [
                        replace(c, text=pad(c.text, str(c.prompt)))
                        for c in rng.choices(right, k=sum(c.node == ATTACKER for c in group))
                    ],
                )
                for group, right in usable
            ]
            batch = [c for group in attacked for c in group]
            verdicts = LengthVerifier().verify(batch)
            bad, good = _apart(batch, verdicts)
            result[f"{name} x{times}"] = {
                "held_out": name in HELD_OUT_PADDING,
                "rejected": rejected(bad),
                "honest_beside": rejected(good),
                "scaling": removed(free, attacked),
                "scaling, own past": removed(free, attacked, 8, past=True),
            }
            if times >= 3:
                _add(blatant["held out" if name in HELD_OUT_PADDING else "known"], bad)
                _add(beside, good)
    for what, counts in blatant.items():
        result[f"blatant (x3, x4, shapes {what})"] = rate(*counts)
    return result | {"honest beside the blatant": rate(*beside)}


def _with_attacker(group: list[Completion], sent: list[Completion]) -> list[Completion]:
    """Replace the attacker's completions in a group; text alone, since ids would not fit."""
    honest = [c for c in group if c.node != ATTACKER]
    sent = [replace(c, node=ATTACKER, group=group[0].group) for c in sent]
    return [replace(c, completion_ids=None) for c in [*honest, *sent]]


def _apart(batch: list[Completion], verdicts: list[Verdict]) -> tuple[list[Verdict], list[Verdict]]:
    both = list(zip(batch, verdicts, strict=True))
    return [v for c, v in both if c.node == ATTACKER], [v for c, v in both if c.node != ATTACKER]


def _add(counts: list[int], verdicts: list[Verdict]) -> None:
    counts[0] += sum(v.rejected for v in verdicts)
    counts[1] += len(verdicts)


def longest_of_pool(groups: Pools) -> dict[str, Any]:
    """The paper's DoS: the longest right answers among eighty, and their length after scaling."""
    free, attacked = list[list[Completion]](), list[list[Completion]]()
    for group, pool in groups:
        right = sorted((c for c in pool if earns(c)), key=lambda c: len(c.text))
        count = sum(c.node == ATTACKER for c in group)
        if len(right) >= count and sum(map(earns, group)) >= 2:
            free.append(group)
            attacked.append(_with_attacker(group, right[-count:]))
    return {
        "groups": len(attacked),
        "scaling": removed(free, attacked),
        "scaling, batches of 8 groups, own past": removed(free, attacked, 8, past=True),
        "scaling, batches of one group": removed(free, attacked, 1),
    }
