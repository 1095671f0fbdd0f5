"""What a cascade saves over asking every verifier about every completion.

``python -m grpo_guard.evals.studies.cascade --data FOLDER --model PATH -o docs/results/cascade.json``

Four nodes answer GSM8K questions: two real models, the data set's own solutions, and an attacker
who poisons those. The stack is the one for nodes with different models; its last member reads the
text with a language model and takes nearly all the time. Both forms see the same completions in
turns, each with new verifiers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard import AllOf, ArithmeticVerifier, Cascade, RecurrenceVerifier, ScreensVerifier
from grpo_guard.completion import Completion
from grpo_guard.evals.attacks.math import MathAttack, NoTargetError
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.results import versions
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.jsonl import read_objects
from grpo_guard.logprob.reference.verifier import ReferenceLikelihoodVerifier
from grpo_guard.verdict import Verdict
from grpo_guard.verifier import CompletionVerifier

ATTACKS: Final = {"none": None, "text": TextAttack(), "math": MathAttack()}
NODES: Final = 4
EXPENSIVE: Final = "reference_likelihood"


def completions(
    path: Path, questions: int, attack: TextAttack | MathAttack | None, seed: int
) -> list[Completion]:
    """Four answers to each question, one per node; the attacker's is the last."""
    rng = random.Random(seed)
    by_question: dict[str, dict[str, Any]] = {}
    for _, row in read_objects(path):
        by_question.setdefault(row["question"], {})[row["model"]] = row
    whole = [rows for rows in by_question.values() if len(rows) >= 2]
    batch = []
    for rows in rng.sample(whole, questions):
        first, second = list(rows.values())[:2]
        gold = _plain(first["ground_truth"])
        answer = re.findall(r"-?[0-9]+", gold.replace(",", ""))[-1]
        texts = [
            _plain(first["completion"]),
            _plain(second["completion"]),
            gold,
            _poisoned(gold, answer, attack, rng),
        ]
        batch += [
            Completion(first["question"], text, node=f"n{i}", reference=answer)
            for i, text in enumerate(texts)
        ]
    return batch


def _plain(text: str) -> str:
    """Without calculator notes, the form that the reference's built-in profile was made of."""
    return re.sub(r"<<[^<>]{0,200}>>", "", text)


def _poisoned(
    gold: str, answer: str, attack: TextAttack | MathAttack | None, rng: random.Random
) -> str:
    if attack is None:
        return gold
    try:
        return attack.poison(Problem("", "", gold, answer), rng).text
    except NoTargetError:
        return gold


def stack(kind: type[AllOf], reference: ReferenceLikelihoodVerifier) -> CompletionVerifier:
    return kind(ScreensVerifier(), ArithmeticVerifier(), RecurrenceVerifier(), reference)


def measure(batch: Sequence[Completion], reference: ReferenceLikelihoodVerifier) -> dict[str, Any]:
    """CPU seconds of both forms, what the last member was asked, and what they reject.

    The attacker's is every fourth completion; with no attack it is honest like the others.
    """
    found: dict[str, Any] = {"completions": len(batch)}
    for kind in (Cascade, AllOf):
        verifier = stack(kind, reference)
        started = time.process_time()
        verdicts = verifier.verify(batch)
        seconds = time.process_time() - started
        asked = sum(any(m.verifier == EXPENSIVE for m in v.members) for v in verdicts)
        by = Counter(m.verifier for v in verdicts for m in v.members if m.rejected)
        found[kind.__name__.lower()] = {
            "cpu_seconds": round(seconds, 1),
            "asked_last_member": asked,
            "rejected_of_first_three_nodes": sum(v.rejected for v in _without_last(verdicts)),
            "rejected_of_last_node": sum(v.rejected for v in verdicts[NODES - 1 :: NODES]),
            "rejections_by_member": dict(by),
        }
    return found


def _without_last(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [v for i, v in enumerate(verdicts) if i % NODES != NODES - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the model solutions")
    parser.add_argument("--model", required=True, help="the reference")
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    reference = ReferenceLikelihoodVerifier.from_pretrained(options.model, alpha=0.01)
    rows = []
    for name, attack in ATTACKS.items():
        path = options.data / "model_solutions.jsonl"
        batch = completions(path, options.questions, attack, seed=1)
        rows.append({"attack": name, **measure(batch, reference)})
        print(rows[-1], flush=True)
    result = {
        "kind": "cascade",
        "command": "python -m grpo_guard.evals.studies.cascade",
        "versions": versions(),
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
