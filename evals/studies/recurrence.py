"""What the verifier `recurrence` costs honest swarms, and how soon it finds a phrase.

    python -m grpo_guard.evals.studies.recurrence --data FOLDER [--also NAME=FILE ...] [-o FILE]

See `solutions` for what FOLDER holds; each ``--also`` adds honest
completions of one more model, one JSON object with ``prompt`` and ``text`` a line. In the attacks,
one node of four is malicious unless the name says otherwise, and GSM8K's solutions stand for the
honest ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from grpo_guard.content.recurrence.verifier import RecurrenceVerifier, SwarmKind
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import read_objects
from grpo_guard.evals.studies.harness import (
    RESULTS,
    option,
    per_second,
    rate,
    rejected,
    study,
    verify,
)
from grpo_guard.evals.studies.recurrence_attacks import (
    ATTACKS,
    HABITS,
    Poison,
)
from grpo_guard.evals.studies.solutions import Solution, of_gsm8k, of_models
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


def deal(solved: Sequence[Solution], nodes: Sequence[str]) -> list[Completion]:
    """Completions in turn over the nodes."""
    return [
        Completion(s.question, s.text, node=nodes[i % len(nodes)]) for i, s in enumerate(solved)
    ]


def in_turn(sources: dict[str, Sequence[Solution]]) -> list[Completion]:
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
    found = rejected(verify(verifier, batch, size))
    convicted = {n: sorted({c.phrase for c in cs}) for n, cs in verifier.convictions().items()}
    return found | {"convicted": convicted}


def honest_swarms(
    gold: Sequence[Solution], models: dict[str, list[Solution]], policy: list[Solution]
) -> dict[str, Any]:
    """Measure swarms with one author, several, a topic per node, and shared templates."""
    unread = gold[_UNREAD:]
    shuffled = [s for solved in models.values() for s in solved]
    random.Random(1).shuffle(shuffled)
    rng = random.Random(2)
    templated = [
        Solution(s.question, template.format(s.text))
        for s in gold
        for template in (rng.choice(HABITS["shared"]),)
    ]
    again = [Solution(f"{s.question} Explain.", f"{s.text}\nDone.") for s in gold[:2527]]
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
    result["habit of its own, known"] = personas(gold, HABITS["known"] + HABITS["later"])
    result["habit of its own, held out"] = personas(gold, HABITS["held_out"])
    result["habit of its own, fresh"] = personas(gold, HABITS["fresh"])
    return result


def topics(gold: Sequence[Solution], mode: SwarmKind) -> dict[str, Any]:
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


def personas(gold: Sequence[Solution], templates: Sequence[str]) -> dict[str, Any]:
    """One node writes like a chat model with a habit, the others like GSM8K."""
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


def attacked(
    poison: Poison, gold: Sequence[Solution], mode: SwarmKind, seeds: int
) -> dict[str, Any]:
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


def crowd(gold: Sequence[Solution], mode: SwarmKind, nodes: int, seeds: int = 5) -> dict[str, Any]:
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


def speed(gold: Sequence[Solution]) -> dict[str, Any]:
    """Completions of about 300 tokens (1,150 characters) per second of CPU time, best of five."""
    batch = [
        Completion(gold[i // 8].question,
                   "\n".join(s.text for s in gold[i : i + 9])[: 900 + 500 * (i % 8) // 7],
                   node=f"n{i % NODES}")
        for i in range(4000)
    ]  # fmt: skip
    return {mode: per_second(partial(RecurrenceVerifier, swarm=mode), batch) for mode in MODES}


def bundled_policy(count: int) -> list[Solution]:
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
    return [Solution(problems[s.prompt].question, s.text) for s in drawn]


def read_models(data: Path, also: Iterable[str]) -> dict[str, list[Solution]]:
    """Honest completions by model."""
    models: dict[str, list[Solution]] = {}
    for solution in of_models(data):
        models.setdefault(solution.model, []).append(solution)
    for pair in also:
        name, _, file = pair.partition("=")
        rows = [row for _, row in read_objects(Path(file))]
        models[name] = [Solution(_asked(r["prompt"]), r["text"]) for r in rows]
    return models


def _asked(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)


def measure(data: Path, also: Sequence[str], seeds: int) -> dict[str, Any]:
    """All figures."""
    gold = of_gsm8k(data)
    return {
        "speed": speed(gold),
        "honest": honest_swarms(gold, read_models(data, also), bundled_policy(300)),
        "attacked": {
            poison.name: {mode: attacked(poison, gold, mode, seeds) for mode in MODES}
            for poison in ATTACKS
        },
        "crowd": {
            str(nodes): {mode: crowd(gold, mode, nodes) for mode in MODES} for nodes in CROWDS
        },
    }


if __name__ == "__main__":
    study(
        "recurrence",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--also", action="append", default=[], metavar="NAME=FILE"),
        option("--seeds", type=int, default=20, help="swarms per attack"),
        out=RESULTS / "recurrence.json",
    )
