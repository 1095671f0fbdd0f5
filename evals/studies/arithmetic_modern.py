"""What arithmetic costs completions of current models, and MATH inserted into their right ones.

``python -m grpo_guard.evals.studies.arithmetic_modern [-o FILE]``; the corpora are those of
`corpora`, each side of the split separately: rules were tuned on "tune", and half of "held" was
looked at once, after the rules were final. The paper's own poison has no side.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.studies.corpora import DATA, MODERN, Split, modern, side
from grpo_guard.evals.studies.harness import RESULTS, rejected, study
from grpo_guard.evals.studies.solutions import of_gsm8k, of_models

MOST_OWN: Final = 1500
"""Number of GSM8K's own solutions on each side."""


def measure() -> dict[str, Any]:
    """Count rejected right completions, and rejected MATH in them, with and without answers."""
    sides: tuple[Split, ...] = ("tune", "held")
    return {
        **{split: _side(split) for split in sides},
        "the paper's own poison": _both(_paper(DATA / "httt" / "math_poison.jsonl")),
    }


def _side(split: Split) -> dict[str, Any]:
    right = [row for name in MODERN for row in modern(name, split) if row.metadata["right"]]
    solved = [
        Completion(s.question, s.text, reference=s.answer)
        for s in of_models(DATA / "gsm8k")
        if s.correct and side(s.question) == split
    ]
    own = [s for s in of_gsm8k(DATA / "gsm8k") if side(s.question) == split][:MOST_OWN]
    written = [Completion(s.question, f"{s.text}\nA: {s.answer}", reference=s.answer) for s in own]
    senders = sorted({str(row.node) for row in right})
    return {
        "modern": _both(right),
        "senders": {name: _rejected([r for r in right if r.node == name]) for name in senders},
        "modern, MATH": _both(_poisoned(right)),
        "GSM8K models": _both(solved),
        "GSM8K models, MATH": _both(_poisoned(solved)),
        "GSM8K's own, MATH": _both(_poisoned(written)),
    }


def _both(rows: Sequence[Completion]) -> dict[str, Any]:
    blind = [replace(row, reference=None) for row in rows]
    return {"with the answer": _rejected(rows), "without": _rejected(blind)}


def _rejected(rows: Sequence[Completion]) -> dict[str, Any]:
    """Verify each separately: counts per node are for `rules`."""
    verifier = ArithmeticVerifier()
    return rejected([verifier.verify([replace(row, node=None)])[0] for row in rows])


def _poisoned(rows: Sequence[Completion]) -> list[Completion]:
    found = []
    for number, row in enumerate(rows):
        poisoned = MathAttack().poison_text(row.text, random.Random(number))
        if poisoned is not None:
            found.append(replace(row, text=poisoned.text))
    return found


def _paper(file: Path) -> list[Completion]:
    rows = map(json.loads, file.open(encoding="utf-8"))
    return [Completion(row["prompt"], row["text"], reference=row["reference"]) for row in rows]


if __name__ == "__main__":
    study("arithmetic-modern", measure, out=RESULTS / "arithmetic-modern.json")
