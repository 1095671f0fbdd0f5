"""What the content verifiers `screens` and `length` cost honest work, and what they stop.

    python -m grpo_guard.evals.content_honest --data FOLDER [--model SMOLLM2] [-o FILE]

FOLDER holds GSM8K's ``train.jsonl`` and ``model_solutions.jsonl``. Attack shapes marked held out
played no part in choosing the thresholds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.content.length.groups import Group, Member
from grpo_guard.content.length.nodes import NodeMemory
from grpo_guard.content.length.scaling import LengthScaling, gr3_scale
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.evals.results import write_json
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.tasks import gsm8k, word_problems
from grpo_guard.verdict import Verdict

NODES, POOL, FACTORS = 4, 80, (2, 3, 4)
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
# Each adds a piece: from the steps, the question, chance, and other people's sentences.
PADDING: dict[str, Fill] = {
    "repeated_steps": lambda steps, q, rng, others: rng.choice(steps),
    "restated_question": lambda steps, q, rng, others: f"The question says: {q}",
    "empty_talk": lambda steps, q, rng, others: rng.choice(_TALK),
    "other_solutions": lambda steps, q, rng, others: rng.choice(others),
}
HELD_OUT_PADDING: dict[str, Fill] = {
    "reworded_steps": lambda steps, q, rng, others: (
        f"{rng.choice(_AGAIN)} {' '.join(reversed(re.split(r', | so | then ', rng.choice(steps))))}"
    ),
    "number_facts": lambda steps, q, rng, others: (
        f"Note that {(n := rng.randint(2, 99))} is {'even' if n % 2 == 0 else 'odd'} and that "
        f"{n} plus one is {n + 1}."
    ),
}


def rate(hits: int, total: int) -> dict[str, Any]:
    """A count with its Wilson interval."""
    interval = wilson(hits, total)
    return {"hits": hits, "total": total, "low": interval.low, "high": interval.high}


def rejected(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Rejections and abstentions, and the kinds of the first findings."""
    kinds = Counter(v.findings[0].kind for v in verdicts if v.rejected and v.findings)
    found = rate(sum(v.rejected for v in verdicts), len(verdicts))
    return found | {"abstained": sum(v.abstained for v in verdicts), "kinds": dict(kinds)}


def padded(
    text: str, question: str, fill: Fill, times: float, rng: random.Random, others: list[str]
) -> str:
    """The text with filler before its answer, until it is ``times`` as long."""
    at = text.find("</think>") if "</think>" in text else max(text.rfind("\n"), 0)
    steps = [s for s in re.split(r"(?<=[.!?])\s+|\n", text[:at].removeprefix("<think>")) if s]
    filler = list[str]()
    while len(text) + sum(map(len, filler)) + len(filler) < times * len(text):
        filler.append(fill(steps or [text[:at] or text], question, rng, others))
    return f"{text[:at]} {' '.join(filler)} {text[at:].lstrip(' ')}"


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


def earns(completion: Completion) -> float:
    """The task's reward."""
    text, answer = completion.text, completion.reference or ""
    if "<answer>" in text:
        return word_problems.reward(text, answer)
    return gsm8k.reward(text, answer)


def removed(free: list[list[Completion]], attacked: list[list[Completion]]) -> dict[str, Any]:
    """How much of the excess length scaling takes away.

    The reward-weighted length is sum(reward * factor * length) / sum(reward * factor) over all
    groups; removed is the share by which scaling brings it from the attacked value back to the
    attack-free one. ``strict`` compares with the attack-free value under scaling, which is shorter.
    """

    def sums(group: list[Completion], how: str, ours: list[float]) -> tuple[float, float]:
        rewards = [earns(c) for c in group]
        lengths = [float(len(c.text)) for c in group]
        factors = {"": [1.0] * len(group), "ours": ours, "gr3": gr3_scale(lengths)}[how]
        weights = [r * f for r, f in zip(rewards, factors, strict=True)]
        return sum(w * x for w, x in zip(weights, lengths, strict=True)), sum(weights)

    table = np.array([
        [sums(a, "", x), sums(b, "", y), sums(b, "ours", y), sums(a, "ours", x), sums(b, "gr3", y)]
        for (a, x), (b, y) in zip(_scaled(free), _scaled(attacked), strict=True)
    ])  # fmt: skip

    def shares(rows: Any) -> Any:
        total = rows.sum(axis=0)
        plain, hit, ours, free_ours, gr3 = total[:, 0] / total[:, 1]
        kept = total[3, 1] / total[0, 1]
        less = np.array([hit - ours, hit - ours, hit - gr3])
        excess = np.array([hit - plain, hit - free_ours, hit - plain])
        return np.array([*(less / excess), kept, hit / plain])

    rng = np.random.default_rng(0)
    draws = [shares(table[rng.integers(0, len(table), len(table))]) for _ in range(1000)]
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    names = ("removed", "strict", "removed_by_gr3", "honest_reward_kept", "inflation")
    value = shares(table)
    return {n: [float(value[i]), float(low[i]), float(high[i])] for i, n in enumerate(names)}


def _scaled(groups: list[list[Completion]]) -> list[tuple[list[Completion], list[float]]]:
    factors = iter(LengthScaling().factors([c for group in groups for c in group]))
    return [(group, [next(factors) for _ in group]) for group in groups]


def honest_rates(batch: list[Completion]) -> dict[str, Any]:
    """Rejections of a batch in which all is honest."""
    return {v.name: rejected(v.verify(batch)) for v in (ScreensVerifier(), LengthVerifier())}


def pairs_under_attack(models: list[Completion], others: list[str]) -> dict[str, Any]:
    """Groups of two: the second model's completion is padded, the first one's is honest."""
    result: dict[str, Any] = {}
    blatant = [0, 0]
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
            if times >= 3 and name in PADDING:
                blatant[0] += sum(v.rejected for v in verdicts[1::2])
                blatant[1] += len(verdicts[1::2])
    return result | {"blatant (x3, x4, shapes known)": rate(*blatant)}


def under_attack(
    groups: list[tuple[list[Completion], list[Completion]]], others: list[str]
) -> dict[str, Any]:
    """One node of four pads, or sends the longest right answers of its pool."""
    usable = [
        (g, right) for g, pool in groups if sum(map(earns, g)) >= 2
        and len(right := [c for c in pool or g if earns(c)]) >= 2
    ]  # fmt: skip
    free = [g for g, _ in usable]
    result: dict[str, Any] = {"groups": len(groups), "attacked": len(usable)}
    result["honest"] = honest_rates([replace(c, completion_ids=None) for g, _ in groups for c in g])
    blatant, all_shapes = [0, 0], {**PADDING, **HELD_OUT_PADDING}
    for times in FACTORS:
        for name, fill in all_shapes.items():
            rng = random.Random(f"{name}{times}")
            attacked = []
            for group, right in usable:
                bad = [c for c in group if c.node == f"n{NODES - 1}"]
                sent = [
                    replace(c, text=padded(c.text, c.prompt, fill, times, rng, others))  # type: ignore[arg-type]
                    for c in rng.choices(right, k=len(bad))
                ]
                attacked.append([replace(c, completion_ids=None) for c in
                                 [*(c for c in group if c not in bad),
                                  *(replace(s, node=bad[0].node) for s in sent)]])  # fmt: skip
            batch = [c for g in attacked for c in g]
            verdicts = LengthVerifier().verify(batch)
            bad_ones = [
                v for v, c in zip(verdicts, batch, strict=True) if c.node == f"n{NODES - 1}"
            ]
            good = [v for v, c in zip(verdicts, batch, strict=True) if c.node != f"n{NODES - 1}"]
            if times >= 3 and name in PADDING:
                blatant = [
                    blatant[0] + sum(v.rejected for v in bad_ones),
                    blatant[1] + len(bad_ones),
                ]
            result[f"{name} x{times}"] = {
                "held_out": name in HELD_OUT_PADDING, "rejected": rejected(bad_ones),
                "honest_beside": rejected(good), "scaling": removed(free, attacked),
            }  # fmt: skip
    result["blatant (x3, x4, shapes known)"] = rate(*blatant)
    return result


def longest_of_pool(groups: list[tuple[list[Completion], list[Completion]]]) -> dict[str, Any]:
    """The paper's DoS: the longest right answers among eighty; scaling, and the node test."""
    free, attacked = list[list[Completion]](), list[list[Completion]]()
    for group, pool in groups:
        right = sorted((c for c in pool if earns(c)), key=lambda c: len(c.text))
        bad = [c for c in group if c.node == f"n{NODES - 1}"]
        if len(right) >= len(bad) and sum(map(earns, group)) >= 2:
            free.append(group)
            attacked.append([*(c for c in group if c not in bad), *right[-len(bad) :]])
    batch = [c for g in attacked for c in g]
    memory, needed = NodeMemory(), 0
    for needed in range(1, len(attacked) + 1):
        LengthVerifier(memory=memory).verify(attacked[needed - 1])
        if memory.convicted():
            break
    verdicts = LengthVerifier(memory=memory).verify(batch)
    mine = [c.node == f"n{NODES - 1}" for c in batch]
    return {
        "groups": len(attacked), "scaling": removed(free, attacked),
        "groups_until_conviction": needed, "convicted": sorted(memory.convicted()),
        "rejected_without_memory": rejected(
            [v for v, m in zip(LengthVerifier().verify(batch), mine, strict=True) if m]),
        "rejected_with_memory": rejected([v for v, m in zip(verdicts, mine, strict=True) if m]),
        "honest_beside": rejected([v for v, m in zip(verdicts, mine, strict=True) if not m]),
    }  # fmt: skip


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
    parser.add_argument("--model", type=Path, help="folder of SmolLM2, for groups of 12 (slow)")
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
    others = [s for _, a in texts[:500] for s in re.sub(r"<<[^<>]*>>", "", a).split("\n")[:-1] if s]
    result["padded beside one honest completion"] = pairs_under_attack(models, others)
    from grpo_guard.evals.policies.bundled import load_bundled

    problems = word_problems.generate("fresh", 60)
    asked = [(p.prompt, p.question, p.answer) for p in problems]
    bundled = sampled_groups(*load_bundled(), asked, 96, 8, POOL)
    result["bundled, groups of 8"] = under_attack(bundled, others)
    result["longest of 80, bundled"] = longest_of_pool(bundled)
    result["false convictions"] = false_convictions(bundled, 400)
    if args.model:
        model, tokenizer = load_bundled(folder=args.model)
        questions = gsm8k.subset(gsm8k.load(args.data / "train.jsonl"), 6, 5)
        chats = [(tokenizer.apply_chat_template([dict(m) for m in gsm8k.messages(q.question)],
                  tokenize=False, add_generation_prompt=True), q.question, q.answer)
                 for q in questions]  # fmt: skip
        sampled = sampled_groups(model, tokenizer, chats, 320, 12, 0)
        result["honest"]["SmolLM2, groups of 12"] = honest_rates([c for g, _ in sampled for c in g])
    command = "python -m grpo_guard.evals.content_honest --data FOLDER"
    command += " --model FOLDER" if args.model else ""
    write_json(args.o, {"kind": "screens-length", "command": command, **result})
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
