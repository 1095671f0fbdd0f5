"""What the verifier `recurrence` costs honest swarms, and how soon it finds a phrase.

    python -m grpo_guard.evals.studies.recurrence --data FOLDER [--also NAME=FILE ...] [-o FILE]

FOLDER holds GSM8K's ``train.jsonl`` and ``model_solutions.jsonl``; each ``--also`` adds honest
completions of one more model, one JSON object with ``prompt`` and ``text`` a line. In the attacks,
one node of four is malicious unless the name says otherwise, and GSM8K's solutions stand for the
honest ones.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier, SwarmKind
from grpo_guard.evals.results import write_json
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.studies.recurrence_attacks import (
    ATTACKS,
    FRESH_PERSONAS,
    HELD_OUT_PERSONAS,
    LATER_PERSONAS,
    PERSONAS,
    SHARED_TEMPLATES,
    Poison,
)
from grpo_guard.evals.tasks import word_problems

MODES: Final[tuple[SwarmKind, ...]] = ("heterogeneous", "homogeneous")
NODES: Final = 4
CROWDS: Final = (70, 300, 1000)
# The bundled lists of words draw on the first 3,737 lines; these are the others.
_UNREAD: Final = 3737
_TOPICS: Final = (
    "cookie egg train dog book apple pizza school paint fish car horse shirt swim garden movie "
    "candy cake chicken flower"
)


@dataclass(frozen=True, slots=True)
class Solved:
    """A question and somebody's solution."""

    question: str
    text: str


def rate(hits: int, total: int) -> dict[str, Any]:
    """A count with its Wilson interval."""
    interval = wilson(hits, total)
    return {"hits": hits, "total": total, "low": interval.low, "high": interval.high}


def deal(solved: Sequence[Solved], nodes: Sequence[str]) -> list[Completion]:
    """Completions in turn over the nodes."""
    return [
        Completion(s.question, s.text, node=nodes[i % len(nodes)]) for i, s in enumerate(solved)
    ]


def in_turn(sources: dict[str, Sequence[Solved]]) -> list[Completion]:
    """One node per source, in step, until the longest ends."""
    longest = max(map(len, sources.values()))
    return [
        Completion(solved[i].question, solved[i].text, node=node)
        for i in range(longest)
        for node, solved in sources.items()
        if i < len(solved)
    ]


def honest(batch: Sequence[Completion], mode: SwarmKind, size: int = 384) -> dict[str, Any]:
    """Rejections of a stream in which all is honest, and the phrases that were convicted."""
    verifier = RecurrenceVerifier(swarm=mode)
    verdicts = [
        v
        for start in range(0, len(batch), size)
        for v in verifier.verify(batch[start : start + size])
    ]
    found = rate(sum(v.rejected for v in verdicts), len(verdicts))
    convicted = {n: sorted({c.phrase for c in cs}) for n, cs in verifier.convictions().items()}
    return found | {"abstained": sum(v.abstained for v in verdicts), "convicted": convicted}


def honest_swarms(
    gold: Sequence[Solved], models: dict[str, list[Solved]], policy: list[Solved]
) -> dict[str, Any]:
    """Swarms of one author, of several, of nodes with a topic each, and of shared templates."""
    unread = gold[_UNREAD:]
    shuffled = [s for solved in models.values() for s in solved]
    random.Random(1).shuffle(shuffled)
    rng = random.Random(2)
    templated = [
        Solved(s.question, template.format(s.text))
        for s in gold
        for template in (rng.choice(SHARED_TEMPLATES),)
    ]
    again = [Solved(f"{s.question} Explain.", f"{s.text}\nDone.") for s in gold[:2527]]
    names = [f"n{i}" for i in range(NODES)]
    swarms = {
        "authors: each source a node": in_turn({**models, "gold": unread, "bundled": policy}),
        "one author: GSM8K's solutions": deal(gold, names),
        "one population: all models, shuffled": deal(shuffled, names),
        "templates that all use": deal([*templated, *again], names),
    }
    result: dict[str, Any] = {
        name: {mode: honest(batch, mode) for mode in MODES} for name, batch in swarms.items()
    }
    result["topic of its own"] = {mode: topics(gold, mode) for mode in MODES}
    result["habit of its own, known"] = personas(gold, PERSONAS + LATER_PERSONAS)
    result["habit of its own, held out"] = personas(gold, HELD_OUT_PERSONAS)
    result["habit of its own, fresh"] = personas(gold, FRESH_PERSONAS)
    return result


def topics(gold: Sequence[Solved], mode: SwarmKind) -> dict[str, Any]:
    """A node that answers only questions on one subject, twenty subjects."""
    hits = total = 0
    for topic in _TOPICS.split():
        mine = [s for s in gold if topic in s.question.lower()][:200]
        rest = [s for s in gold if topic not in s.question.lower()]
        random.Random(topic).shuffle(rest)
        others = {f"n{k}": rest[k * len(mine) : (k + 1) * len(mine)] for k in range(NODES - 1)}
        found = honest(in_turn({"topic": mine, **others}), mode)
        hits, total = hits + found["hits"], total + found["total"]
    return rate(hits, total)


def personas(gold: Sequence[Solved], templates: Sequence[str]) -> dict[str, Any]:
    """One node writes as a chat model with a habit does, the others as GSM8K does."""
    flagged = {}
    rejected = total = 0
    for number, template in enumerate(templates):
        solved = gold[number * 400 % 6000 : number * 400 % 6000 + 400]
        batch = [
            replace(c, text=template.format(c.text)) if c.node == "n3" else c
            for c in deal(solved, [f"n{i}" for i in range(NODES)])
        ]
        found = honest(batch, "heterogeneous")
        rejected, total = rejected + found["hits"], total + found["total"]
        if found["convicted"]:
            flagged[template] = found["convicted"]
    return {
        "habits flagged": rate(len(flagged), len(templates)),
        "rejected": rate(rejected, total),
        "flagged": flagged,
    }


def attacked(poison: Poison, gold: Sequence[Solved], mode: SwarmKind, seeds: int) -> dict[str, Any]:
    """Swarms under one attack; completions come in batches of eight."""
    first, hit, sent, late_hit, late, beside, honest_ones = list[int | None](), 0, 0, 0, 0, 0, 0
    for seed in range(seeds):
        rng = random.Random(f"{poison.name}{seed}")
        drawn = rng.sample(list(gold), NODES * poison.count)
        verifier = RecurrenceVerifier(swarm=mode)
        change = poison.start(rng)
        found: int | None = None
        bad_sent = 0
        for start in range(0, len(drawn), 8):
            batch, bad = [], []
            for i, s in enumerate(drawn[start : start + 8], start):
                node, text = change(i // NODES, i % NODES, s.text)
                bad.append(text is not None)
                batch.append(Completion(s.question, s.text if text is None else text, node=node))
            for is_bad, verdict in zip(bad, verifier.verify(batch), strict=True):
                if not is_bad:
                    beside, honest_ones = beside + verdict.rejected, honest_ones + 1
                    continue
                bad_sent, sent, hit = bad_sent + 1, sent + 1, hit + verdict.rejected
                if verdict.rejected and found is None:
                    found = bad_sent
                if start >= len(drawn) // 2:
                    late, late_hit = late + 1, late_hit + verdict.rejected
        first.append(found)
    known = [n for n in first if n is not None]
    return {
        "found": rate(len(known), seeds),
        "within_20": rate(sum(n <= 20 for n in known), seeds),
        "first_rejected_median": median(known) if known else None,
        "first_rejected_worst": max(known) if len(known) == seeds else None,
        "rejected": rate(hit, sent),
        "rejected_in_second_half": rate(late_hit, late),
        "honest_beside": rate(beside, honest_ones),
    }


def crowd(gold: Sequence[Solved], mode: SwarmKind, nodes: int, seeds: int = 5) -> dict[str, Any]:
    """Many nodes, one of them malicious and the last to be known; 40 prompts of each.

    Each round's completions are one batch. *later* is the malicious node's second half.
    """
    found = hit = late = beside = honest_ones = 0
    for seed in range(seeds):
        rng = random.Random(f"crowd{nodes}{seed}")
        verifier = RecurrenceVerifier(swarm=mode)
        mine = 0
        for turn in range(40):
            drawn = rng.choices(gold, k=nodes)
            batch = [Completion(s.question, s.text, node=f"n{i}") for i, s in enumerate(drawn)]
            batch[-1] = replace(batch[-1], text=f"All hail to the thief. {batch[-1].text}")
            *others, last = verifier.verify(batch)
            beside, honest_ones = beside + sum(v.rejected for v in others), honest_ones + nodes - 1
            late, mine = late + (turn >= 20), mine + (turn >= 20 and last.rejected)
        hit, found = hit + mine, found + (mine > 0)
    return {
        "found": rate(found, seeds),
        "rejected_in_second_half": rate(hit, late),
        "honest_beside": rate(beside, honest_ones),
    }


def speed(gold: Sequence[Solved]) -> dict[str, Any]:
    """Completions of about 300 tokens (1,150 characters) per second of CPU time, best of five."""
    batch = [
        Completion(gold[i // 8].question,
                   "\n".join(s.text for s in gold[i : i + 9])[: 900 + 500 * (i % 8) // 7],
                   node=f"n{i % NODES}")
        for i in range(4000)
    ]  # fmt: skip
    found: dict[str, Any] = {}
    for mode in MODES:
        seconds = []
        for _ in range(5):
            verifier = RecurrenceVerifier(swarm=mode)
            started = time.process_time()
            verifier.verify(batch)
            seconds.append(time.process_time() - started)
        found[mode] = round(len(batch) / min(seconds))
    return found


def bundled_policy(count: int) -> list[Solved]:
    """Samples of the policy that ships with the package."""
    import torch

    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.swarm.generate import sample

    model, tokenizer = load_bundled()
    problems = word_problems.generate(11, count)
    generator = torch.Generator().manual_seed(0)
    drawn = sample(
        model, tokenizer, [p.prompt for p in problems], 1, generator=generator, max_new_tokens=96
    )
    return [Solved(problems[s.prompt].question, s.text) for s in drawn]


def read_gold(path: Path) -> list[Solved]:
    """GSM8K's questions and solutions, without calculator notes."""
    rows = map(json.loads, path.open(encoding="utf-8"))
    return [Solved(r["question"], _plain(r["answer"].split("\n####")[0])) for r in rows]


def read_models(data: Path, also: Iterable[str]) -> dict[str, list[Solved]]:
    """Honest completions by model."""
    models: dict[str, list[Solved]] = {}
    for row in map(json.loads, (data / "model_solutions.jsonl").open(encoding="utf-8")):
        solved = Solved(row["question"], row["completion"])
        models.setdefault(row["model"], []).append(solved)
    for pair in also:
        name, _, file = pair.partition("=")
        lines = Path(file).read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line]
        models[name] = [Solved(_asked(r["prompt"]), r["text"]) for r in rows]
    return models


def _asked(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)


def _plain(text: str) -> str:
    return re.sub(r"<<[^<>]{0,200}>>", "", text)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Recurring phrases: honest cost and detection.")
    parser.add_argument("--data", type=Path, required=True, help="folder with GSM8K's two files")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--seeds", type=int, default=20, help="swarms per attack")
    parser.add_argument("-o", type=Path, default=Path("docs/results/recurrence.json"))
    args = parser.parse_args()
    gold = read_gold(args.data / "train.jsonl")
    result: dict[str, Any] = {"speed": speed(gold)}
    models = read_models(args.data, args.also)
    result["honest"] = honest_swarms(gold, models, bundled_policy(300))
    result["attacked"] = {
        poison.name: {mode: attacked(poison, gold, mode, args.seeds) for mode in MODES}
        for poison in ATTACKS
    }
    result["crowd"] = {
        str(nodes): {mode: crowd(gold, mode, nodes) for mode in MODES} for nodes in CROWDS
    }
    command = "python -m grpo_guard.evals.studies.recurrence --data FOLDER"
    command += "".join(f" --also {pair.partition('=')[0]}=FILE" for pair in args.also)
    write_json(args.o, {"kind": "recurrence", "command": command, **result})
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
