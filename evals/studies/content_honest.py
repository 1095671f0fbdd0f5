"""What the content verifiers `screens` and `length` cost honest work, and what they stop.

    python -m grpo_guard.evals.studies.content_honest --data FOLDER [--samples FILE] [-o FILE]

FOLDER holds GSM8K's ``train.jsonl`` and ``model_solutions.jsonl``; FILE is what
`content_samples` writes. Attack shapes marked held out
played no part in choosing the thresholds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.content.length.groups import Group, Member, is_right
from grpo_guard.content.length.nodes import NodeMemory
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.evals.results import write_json
from grpo_guard.evals.studies.content_attacks import (
    FACTORS,
    NODES,
    POOL,
    Pools,
    always,
    longest_of_pool,
    rate,
    rejected,
    under_attack,
)
from grpo_guard.evals.studies.content_padding import HELD_OUT_PADDING, PADDING, padded
from grpo_guard.evals.tasks import word_problems


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
        if is_right(completion):
            kept.setdefault(completion.node or "", []).append(factor)
    rng = np.random.default_rng(0)
    found = {}
    for node, factors in kept.items():
        values = np.array(factors)
        draws = rng.choice(values, (1000, len(values))).mean(axis=1)
        low, high = np.quantile(draws, (0.025, 0.975))
        found[node] = [float(values.mean()), float(low), float(high), len(values)]
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
            memory.observe([Group(members, frozenset(range(len(members))))])
            hit = hit or bool(memory.convicted())
        bad += hit
    return rate(bad, runs) | {"alpha": 0.05}


def speed(texts: list[tuple[str, str]]) -> dict[str, Any]:
    """Completions of about 300 tokens (1,150 characters) per second of CPU time, best of five."""
    plain = [re.sub(r"<<[^<>]*>>", "", answer).split("\n####")[0] for _, answer in texts]
    batch = [
        Completion(texts[i // 8][0], "\n".join(plain[i : i + 9])[: 900 + 500 * (i % 8) // 7],
                   group=i // 8)
        for i in range(4000)
    ]  # fmt: skip
    found = {}
    for verifier in (ScreensVerifier(), LengthVerifier()):
        seconds = []
        for _ in range(5):
            started = time.process_time()
            verifier.verify(batch)
            seconds.append(time.process_time() - started)
        found[verifier.name] = round(len(batch) / min(seconds))
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Honest work and padding under content checks.")
    parser.add_argument("--data", type=Path, required=True, help="folder with GSM8K's two files")
    parser.add_argument("--samples", type=Path, help="a real model's, by content_samples")
    parser.add_argument("-o", type=Path, default=Path("docs/results/screens-length.json"))
    args = parser.parse_args()
    rows = [json.loads(x) for x in (args.data / "model_solutions.jsonl").open(encoding="utf-8")]
    gold = [json.loads(x) for x in (args.data / "train.jsonl").open(encoding="utf-8")]
    texts = [(r["question"], r["answer"]) for r in gold]

    def answered(row: dict[str, Any], text: str, node: str) -> Completion:
        reference = row["ground_truth"].rpartition("A: ")[2]
        return Completion(row["question"], text, node=node, reference=reference)

    models = [answered(r, r["completion"], r["model"]) for r in rows]
    solutions = [Completion(q, a) for q, a in texts]
    three = [*models, *(answered(r, r["ground_truth"], "gold") for r in rows[::2])]
    result: dict[str, Any] = {"speed": speed(texts)}
    result["honest"] = {
        "model_solutions": honest_rates(models),
        "gsm8k_solutions": honest_rates(solutions),
        "two models and the solution": {"length": rejected(LengthVerifier().verify(three))},
    }  # fmt: skip
    result["honest reward kept, three writers"] = reward_kept(three)
    others = [s for _, a in texts[:500] for s in re.sub(r"<<[^<>]*>>", "", a).split("\n")[:-1] if s]
    result["padded beside one honest completion"] = pairs_under_attack(models, others)
    from grpo_guard.evals.policies.bundled import load_bundled

    problems = word_problems.generate("fresh", 60)
    asked = [(p.prompt, p.question, p.answer) for p in problems]
    bundled = sampled_groups(*load_bundled(), asked, 96, 8, POOL)
    result["honest"]["bundled policy, groups of 8"] = honest_rates(_texts(bundled, 0))
    result["honest"]["bundled policy, groups of 80"] = honest_rates(_texts(bundled, 1))
    result["bundled, groups of 8"] = under_attack(bundled, others)
    result["longest of 80, bundled"] = longest_of_pool(bundled)
    result["false convictions"] = false_convictions(bundled, 400)
    if args.samples:
        real = read_samples(args.samples)
        result["honest"]["SmolLM2, groups of 8"] = honest_rates(_texts(real, 0))
        result["honest"]["SmolLM2, groups of 80"] = honest_rates(_texts(real, 1))
        # It answers one question in a hundred: every completion earns, right or wrong.
        result["SmolLM2, groups of 8"] = under_attack([(g, []) for g, _ in real], others, always)
        result["longest of 80, SmolLM2"] = longest_of_pool(real, always)
    command = "python -m grpo_guard.evals.studies.content_honest --data FOLDER"
    command += " --samples FILE" if args.samples else ""
    write_json(args.o, {"kind": "screens-length", "command": command, **result})
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
