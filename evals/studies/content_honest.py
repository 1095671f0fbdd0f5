"""What the content verifiers `screens` and `length` cost honest work, and what they stop.

    python -m grpo_guard.evals.studies.content_honest --data FOLDER [--model FOLDER] [-o FILE]

See `solutions` for the contents of the data's folder; with a real model's folder its completions
are judged too, which takes a quarter of an hour. Attack shapes marked held out were not used to
choose the thresholds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies import corpora
from grpo_guard.evals.studies.content_attacks import (
    NODES,
    POOL,
    Pools,
    earns,
    longest_of_pool,
    under_attack,
)
from grpo_guard.evals.studies.harness import RESULTS, option, rejected, say, study
from grpo_guard.evals.studies.solutions import TRAIN, of_gsm8k, of_models
from grpo_guard.evals.tasks import gsm8k, word_problems
from grpo_guard.evals.tasks.gsm8k import plain

GROUP: Final = 8
"""Honest completions per question, equally many from each node."""
BUNDLED: Final = 60
"""Questions for the bundled policy."""
REAL: Final = 16
"""Questions for the real model."""
REAL_POOLS: Final = 2
"""How many of them get a pool."""
STEPS: Final = 2
"""Steps in the solution of a question for the real model: one of 135M parameters answers few
longer ones."""
SEED: Final = 5


def bundled_groups() -> Pools:
    """Sample groups of the bundled policy, each with the attacker's candidates."""
    import torch

    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.swarm.generate import sample

    model, tokenizer = load_bundled()
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, problem in enumerate(word_problems.generate("fresh", BUNDLED)):
        drawn = sample(
            model, tokenizer, [problem.prompt], GROUP + POOL,
            generator=generator, max_new_tokens=96,
        )  # fmt: skip
        made = [
            Completion(
                problem.question,
                s.text,
                completion_ids=s.ids,
                reference=problem.answer,
                group=number,
                node=f"n{min(i * NODES // GROUP, NODES - 1)}",
            )
            for i, s in enumerate(drawn)
        ]
        found.append((made[:GROUP], made[GROUP:]))
    return found


def real_groups(folder: Path, data: Path) -> Pools:
    """Do the same with a real model on GSM8K; pools for the questions that it answers best."""
    import torch

    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.swarm.generate import sample

    model, tokenizer = load_bundled(folder=folder)
    easy = [q for q in gsm8k.load(data / TRAIN) if q.solution.count("<<") <= STEPS]
    questions = gsm8k.subset(easy, REAL, SEED)

    def drawn(question: gsm8k.Question, count: int, seed: int) -> list[Completion]:
        chat = [dict(m) for m in gsm8k.messages(question.question)]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        # Each question has its own generator: a larger number of questions changes none.
        generator = torch.Generator().manual_seed(seed)
        made = sample(model, tokenizer, [prompt], count, generator=generator, max_new_tokens=256)
        say("sampled", questions.index(question) + 1, REAL)
        return [
            Completion(question.question, s.text, reference=question.answer, group=question.index)
            for s in made
        ]

    groups = {q.index: drawn(q, GROUP, q.index * 2) for q in questions}
    right = {index: sum(map(earns, group)) for index, group in groups.items()}
    best = sorted(questions, key=lambda q: -right[q.index])[:REAL_POOLS]
    pools = {q.index: drawn(q, POOL, q.index * 2 + 1) for q in best}
    return [(group, pools.get(index, [])) for index, group in groups.items()]


def _texts(groups: Pools, part: int) -> list[Completion]:
    """Return all completions of the groups (0) or of the pools (1), without their ids."""
    return [
        replace(c, completion_ids=None, node=f"n{i % NODES}")
        for both in groups
        for i, c in enumerate(both[part])
    ]


def honest_rates(batch: list[Completion]) -> dict[str, Any]:
    """Measure rejections in a batch of only honest work."""
    return {v.name: rejected(v.verify(batch)) for v in (ScreensVerifier(), LengthVerifier())}


def modern_factors(split: corpora.Split) -> dict[str, Any]:
    """Mean factor of right completions per model, by the group and by each node's own past."""
    found: dict[str, Any] = {}
    for how, past in (("group", False), ("own past", True)):
        scaling, kept = LengthScaling(tolerance=0.5, past=past), defaultdict[str, list[float]](list)
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


def measure(data: Path, model: Path | None) -> dict[str, Any]:
    """Compute all figures."""
    rows, gold = of_models(data), of_gsm8k(data, form=str)
    models = [Completion(r.question, r.text, node=r.model, reference=r.answer) for r in rows]
    solutions = [Completion(s.question, f"{s.text}\n#### {s.answer}") for s in gold]
    others = [s for text in (plain(s.text) for s in gold[:500]) for s in text.split("\n") if s]
    bundled = bundled_groups()
    honest = {
        "model_solutions": honest_rates(models),
        "gsm8k_solutions": honest_rates(solutions),
        "bundled policy, groups of 8": honest_rates(_texts(bundled, 0)),
        "bundled policy, groups of 80": honest_rates(_texts(bundled, 1)),
    }
    if model:
        real = real_groups(model, data)
        honest["SmolLM2, groups of 8"] = honest_rates(_texts(real, 0))
        honest["SmolLM2, groups of 80"] = honest_rates(_texts(real, 1))
    return {
        "honest": honest,
        "mean factor of right modern completions": {
            "tune": modern_factors("tune"),
            "held": modern_factors("held"),
        },
        "bundled, groups of 8": under_attack(bundled, others),
        "longest of 80, bundled": longest_of_pool(bundled),
    }


if __name__ == "__main__":
    study(
        "screens-length",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--model", type=Path, metavar="FOLDER", help="a real model: SmolLM2"),
        out=RESULTS / "screens-length.json",
    )
