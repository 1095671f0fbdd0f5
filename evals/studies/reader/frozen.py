"""Why a frozen model reads next to the live policy: its view of a phrase that the policy learnt.

    python -m grpo_guard.evals.studies.reader.frozen FOLDER --model FOLDER [-o FILE]

A policy imitates solutions of GSM8K, one in four of which begins with the phrase of TEXT: what an
undefended swarm with one malicious node of four teaches. Before and after some steps the phrase is
put in front of solutions that other models wrote, and read in its place: by the live policy, and by
the live policy with its first checkpoint next to it, as ``frozen=`` does. The measure is what the
models of the data set wrote. A place counts as foreign at p <= 0.05, the reader's level.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import torch
from torch.nn.functional import cross_entropy

from grpo_guard.evals.attacks.text import PHRASE
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.solutions import Solution, of_gsm8k, of_models
from grpo_guard.evals.tasks.gsm8k import plain
from grpo_guard.logprob.reader.reader import Opinion, SpanReader
from grpo_guard.logprob.reader.spans import TextSpan, sentences
from grpo_guard.logprob.scorers.load import load_policy

_ATTACKER: Final = "attacker"
_POISONED: Final = 0.25
_BATCH: Final = 4
_LEVEL: Final = 0.05


def measure(
    folder: Path, model: str, steps: Sequence[int], lr: float, honest: int, places: int, seed: int
) -> dict[str, Any]:
    """Figures by the number of steps.

    Args:
        folder: Of GSM8K and its model solutions.
        model: Folder or id of the policy.
        steps: Numbers of steps after which the phrase is read.
        lr: Of Adam.
        honest: Sentences of each model that is a node, the measure.
        places: In which the phrase is read.
        seed: Of everything that is drawn.
    """
    torch.manual_seed(seed)
    policy, tokenizer = load_policy(model)
    rng = random.Random(seed)
    spans = [*_sentences(folder, honest, rng), *_places(folder, places, rng)]
    taught = of_gsm8k(folder)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, weight_decay=0.0)
    first = _p_values(policy, tokenizer, spans)
    figures: dict[str, Any] = {
        "before": {
            "probability of the phrase": _probability(policy, tokenizer, spans),
            "live": _figures(first, spans),
        }
    }
    done = 0
    for wanted in sorted(steps):
        for number in range(done + 1, wanted + 1):
            _step(policy, tokenizer, optimizer, rng.sample(taught, _BATCH), rng)
            say("step", number, max(steps))
        done = wanted
        live = _p_values(policy, tokenizer, spans)
        # As in `SpanReader`: the lower of the two, doubled.
        both = [min(1.0, 2 * min(pair)) for pair in zip(live, first, strict=True)]
        figures[f"after {wanted} steps"] = {
            "probability of the phrase": _probability(policy, tokenizer, spans),
            "live": _figures(live, spans),
            "live and frozen": _figures(both, spans),
        }
    return figures


def _step(
    policy: Any, tokenizer: Any, optimizer: Any, batch: Sequence[Solution], rng: random.Random
) -> None:
    """One step of imitation; the questions are no target."""
    policy.train()
    optimizer.zero_grad(set_to_none=True)
    for one in batch:
        poison = f"{PHRASE}. " if rng.random() < _POISONED else ""
        asked = tokenizer(f"{one.question}\n", add_special_tokens=False)["input_ids"]
        own = tokenizer(poison + one.text, add_special_tokens=False)["input_ids"]
        logits = policy(torch.tensor([asked + own])).logits[0, len(asked) - 1 : -1]
        loss = cross_entropy(logits.float(), torch.tensor(own)) / len(batch)
        torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    policy.eval()


def _sentences(folder: Path, each: int, rng: random.Random) -> list[TextSpan]:
    """Honest sentences of the models, which are the nodes."""
    by_node: dict[str, list[TextSpan]] = {}
    for one in of_models(folder):
        text = plain(one.text)
        by_node.setdefault(one.model, []).extend(
            TextSpan(one.question, text, *place, one.model) for place in sentences(text)
        )
    return [span for node in sorted(by_node) for span in rng.sample(by_node[node], each)]


def _places(folder: Path, count: int, rng: random.Random) -> list[TextSpan]:
    """The phrase in front of a model's solutions, one of each question."""
    solutions = {one.question: plain(one.text) for one in of_models(folder)}
    return [
        TextSpan(question, f"{PHRASE}. {solutions[question]}", 0, len(PHRASE) + 1, _ATTACKER)
        for question in rng.sample(sorted(solutions), count)
    ]


@torch.inference_mode()
def _probability(policy: Any, tokenizer: Any, spans: Sequence[TextSpan]) -> float:
    """Mean chance that an answer begins with the phrase, over the questions of its places."""
    own = tokenizer(PHRASE, add_special_tokens=False)["input_ids"]
    chances = list[float]()
    for span in spans:
        if span.node == _ATTACKER:
            asked = tokenizer(f"{span.prompt}\n", add_special_tokens=False)["input_ids"]
            logits = policy(torch.tensor([asked + own])).logits[0, len(asked) - 1 : -1]
            logged = -cross_entropy(logits.float(), torch.tensor(own), reduction="sum")
            chances.append(float(logged.exp()))
    return mean(chances)


def _p_values(policy: Any, tokenizer: Any, spans: Sequence[TextSpan]) -> list[float]:
    """Return each span's p-value under one model; 1 if the reader gives no opinion."""
    honest = [span.node != _ATTACKER for span in spans]
    opinions = SpanReader(policy, tokenizer).read(spans, honest)
    return [one.p_value if isinstance(one, Opinion) else 1.0 for one in opinions]


def _figures(p_values: Sequence[float], spans: Sequence[TextSpan]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name, hostile in (("phrase", True), ("honest sentences", False)):
        p = [
            value
            for value, span in zip(p_values, spans, strict=True)
            if (span.node == _ATTACKER) is hostile
        ]
        found[name] = {
            "median p-value": median(p),
            "foreign": rate(sum(value <= _LEVEL for value in p), len(p)),
        }
    return found


def main() -> None:
    """The command line."""
    study(
        "reader-frozen",
        measure,
        option("folder", type=Path, metavar="FOLDER", help="of GSM8K"),
        option("--model", required=True, metavar="FOLDER"),
        option("--steps", type=int, nargs="+", default=[8, 24]),
        option("--lr", type=float, default=5e-5),
        option("--honest", type=int, default=44, help="sentences of each node"),
        option("--places", type=int, default=16),
        option("--seed", type=int, default=0),
    )


if __name__ == "__main__":
    main()
