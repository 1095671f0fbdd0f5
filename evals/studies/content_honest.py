"""What the content verifiers `screens` and `length` cost honest work, and what they stop.

    python -m grpo_guard.evals.studies.content_honest --data FOLDER [--samples FILE] [-o FILE]

See `solutions` for what FOLDER holds; FILE is what `content_samples` writes. Attack shapes marked
held out played no part in choosing the thresholds.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.content.answers import is_right
from grpo_guard.content.length.groups import Member
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.evals.studies import corpora
from grpo_guard.evals.studies.content_attacks import (
    FACTORS,
    HELD_OUT_PADDING,
    NODES,
    PADDING,
    POOL,
    Pools,
    always,
    longest_of_pool,
    padded,
    under_attack,
)
from grpo_guard.evals.studies.harness import RESULTS, option, per_second, rate, rejected, study
from grpo_guard.evals.studies.solutions import of_gsm8k, of_models, plain
from grpo_guard.evals.tasks import word_problems
from grpo_guard.nodes.lengths import NodeMemory


def sampled_groups(
    model: Any, tokenizer: Any, asked: list[tuple[str, str, str]], limit: int, size: int, pool: int
) -> list[tuple[list[Completion], list[Completion]]]:
    """(honest group over four nodes, an attacker's pool) per (prompt, question, answer)."""
    import torch

    from grpo_guard.evals.swarm.generate import sample

    generator = torch.Generator().manual_seed(0)
    found = []
    for number, (prompt, question, answer) in enumerate(asked):
        drawn = sample(
            model, tokenizer, [prompt], size + pool, generator=generator, max_new_tokens=limit
        )
        made = [
            Completion(
                question,
                s.text,
                completion_ids=s.ids,
                reference=answer,
                group=number,
                node=f"n{i * NODES // size}" if i < size else f"n{NODES - 1}",
            )
            for i, s in enumerate(drawn)
        ]
        found.append((made[:size], made[size:]))
    return found  # fmt: skip


def read_samples(file: Path) -> Pools:
    """Groups over four nodes, and the pools that some of them have, as `content_samples` wrote."""
    found: dict[str, tuple[list[Completion], list[Completion]]] = {}
    for row in map(json.loads, file.open(encoding="utf-8")):
        group, pool = found.setdefault(row["question"], ([], []))
        mine = group if row["kind"] == "group" else pool
        node = f"n{len(mine) % NODES}"
        mine.append(
            Completion(
                row["question"],
                row["text"],
                completion_ids=row["ids"],
                node=node,
                group=len(found),
            )
        )
    return list(found.values())


def _texts(groups: Pools, part: int) -> list[Completion]:
    """All completions of the groups (0) or of the pools (1), without their ids."""
    batch = [
        replace(c, completion_ids=None, node=f"n{i % NODES}")
        for both in groups
        for i, c in enumerate(both[part])
    ]
    return batch


def honest_rates(batch: list[Completion]) -> dict[str, Any]:
    """Rejections of a batch in which all is honest."""
    return {v.name: rejected(v.verify(batch)) for v in (ScreensVerifier(), LengthVerifier())}


def reward_kept(batch: list[Completion]) -> dict[str, Any]:
    """Mean factor of honest right answers, by who wrote them: [mean, low, high, answers]."""
    kept: dict[str, list[float]] = {}
    for completion, factor in zip(batch, LengthScaling().factors(batch), strict=True):
        if completion.reference is not None and is_right(completion.text, completion.reference):
            kept.setdefault(completion.node or "", []).append(factor)
    rng = np.random.default_rng(0)
    found = {}
    for node, factors in kept.items():
        values = np.array(factors)
        draws = rng.choice(values, (1000, len(values))).mean(axis=1)
        low, high = np.quantile(draws, (0.025, 0.975))
        found[node] = [float(values.mean()), float(low), float(high), len(values)]
    return found


def modern_factors(split: corpora.Split) -> dict[str, Any]:
    """Mean factor of right completions per model, by the group and by each node's own past."""
    found: dict[str, Any] = {}
    for how, past in (("group", False), ("own past", True)):
        scaling, kept = LengthScaling(past=past), defaultdict[str, list[float]](list)
        for name in corpora.MODERN:
            rounds = defaultdict[object, list[Completion]](list)
            for row in corpora.modern(name, split):
                rounds[row.round].append(row)
            for batch in rounds.values():
                for row, factor in zip(batch, scaling.factors(batch), strict=True):
                    if row.metadata["right"]:
                        kept[row.node or ""].append(factor)
        found[how] = {node: [float(np.mean(f)), len(f)] for node, f in sorted(kept.items())}
    return found


def pairs_under_attack(models: list[Completion], others: list[str]) -> dict[str, Any]:
    """Groups of two: the second model's completion is padded, the first one's is honest."""
    result: dict[str, Any] = {}
    for times in FACTORS:
        for name, fill in {**PADDING, **HELD_OUT_PADDING}.items():
            rng = random.Random(f"{name}{times}")
            batch = list(models)
            for i in range(1, len(batch), 2):
                text, question = batch[i].text, str(batch[i].prompt)
                batch[i] = replace(batch[i], text=padded(text, question, fill, times, rng, others))
            verdicts = LengthVerifier().verify(batch)
            result[f"{name} x{times}"] = {
                "held_out": name in HELD_OUT_PADDING,
                "rejected": rejected(verdicts[1::2]),
                "honest_beside": rejected(verdicts[::2]),
            }
    return result


def false_convictions(groups: list[tuple[list[Completion], list[Completion]]], runs: int) -> Any:
    """Honest nodes only, lengths redrawn from real ones, 200 groups a run, alpha 0.05."""
    rng, bad = random.Random(0), 0
    pools = [[len(c.text) for c in [*g, *p]] for g, p in groups]
    for _ in range(runs):
        memory, hit = NodeMemory(alpha=0.05, max_nodes=NODES), False
        for _ in range(200):
            lengths = rng.choices(rng.choice(pools), k=2 * NODES)
            members = [Member(i, n, f"n{i % NODES}", None) for i, n in enumerate(lengths)]
            memory.observe([members])
            hit = hit or bool(memory.convicted())
        bad += hit
    return rate(bad, runs) | {"alpha": 0.05}


def speed(questions: list[str], texts: list[str]) -> dict[str, Any]:
    """Completions of about 300 tokens (1,150 characters) per second of CPU time, best of five."""
    batch = [
        Completion(questions[i // 8], "\n".join(texts[i : i + 9])[: 900 + 500 * (i % 8) // 7],
                   group=i // 8)
        for i in range(4000)
    ]  # fmt: skip
    makers = {"screens": ScreensVerifier, "length": LengthVerifier}
    return {name: per_second(make, batch) for name, make in makers.items()}


def measure(data: Path, samples: Path | None) -> dict[str, Any]:
    """All figures."""
    from grpo_guard.evals.policies.bundled import load_bundled

    rows, gold = of_models(data), of_gsm8k(data, form=str)
    models = [Completion(r.question, r.text, node=r.model, reference=r.answer) for r in rows]
    theirs = [Completion(r.question, r.gold, node="gold", reference=r.answer) for r in rows[::2]]
    solutions = [Completion(s.question, f"{s.text}\n#### {s.answer}") for s in gold]
    three = [*models, *theirs]
    texts = [plain(s.text) for s in gold]
    others = [s for text in texts[:500] for s in text.split("\n") if s]
    problems = word_problems.generate("fresh", 60)
    asked = [(p.prompt, p.question, p.answer) for p in problems]
    bundled = sampled_groups(*load_bundled(), asked, 96, 8, POOL)
    result: dict[str, Any] = {
        "speed": speed([s.question for s in gold], texts),
        "honest": {
            "model_solutions": honest_rates(models),
            "gsm8k_solutions": honest_rates(solutions),
            "two models and the solution": {"length": rejected(LengthVerifier().verify(three))},
            "bundled policy, groups of 8": honest_rates(_texts(bundled, 0)),
            "bundled policy, groups of 80": honest_rates(_texts(bundled, 1)),
        },
        "honest reward kept, three writers": reward_kept(three),
        "mean factor of right modern completions": {
            "tune": modern_factors("tune"),
            "held": modern_factors("held"),
        },
        "padded beside one honest completion": pairs_under_attack(models, others),
        "bundled, groups of 8": under_attack(bundled, others),
        "longest of 80, bundled": longest_of_pool(bundled),
        "false convictions": false_convictions(bundled, 400),
    }
    if samples:
        real = read_samples(samples)
        result["honest"]["SmolLM2, groups of 8"] = honest_rates(_texts(real, 0))
        result["honest"]["SmolLM2, groups of 80"] = honest_rates(_texts(real, 1))
        # It answers one question in a hundred: every completion earns, right or wrong.
        result["SmolLM2, groups of 8"] = under_attack([(g, []) for g, _ in real], others, always)
        result["longest of 80, SmolLM2"] = longest_of_pool(real, always)
    return result


if __name__ == "__main__":
    study(
        "screens-length",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--samples", type=Path, metavar="FILE", help="a real model's, by content_samples"),
        out=RESULTS / "screens-length.json",
    )
