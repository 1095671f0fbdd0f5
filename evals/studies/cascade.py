"""What a cascade saves compared with asking every verifier about every completion.

``python -m grpo_guard.evals.studies.cascade --data FOLDER --model PATH -o FILE``

Four nodes answer GSM8K questions: two real models, the data set's own solutions, and an attacker
who poisons those. The stack is the one for nodes with different models; its last member reads the
text with a language model and takes nearly all the time. Both forms see the same completions in
turn, each with new verifiers.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard import AllOf, ArithmeticVerifier, Cascade, RecurrenceVerifier, ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.attacks.base import NoTargetError
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.studies.harness import option, rejected, study
from grpo_guard.evals.studies.solutions import Solution, of_models
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.gsm8k import plain
from grpo_guard.logprob.reference.verifier import ReferenceLikelihoodVerifier

ATTACKS: Final = {"none": None, "text": TextAttack(), "math": MathAttack()}
NODES: Final = 4
EXPENSIVE: Final = "reference_likelihood"


def completions(
    folder: Path, questions: int, attack: TextAttack | MathAttack | None, seed: int
) -> list[Completion]:
    """Build four answers to each question, one per node; the attacker's is the last."""
    rng = random.Random(seed)
    by_question: dict[str, dict[str, Solution]] = {}
    for solution in of_models(folder):
        by_question.setdefault(solution.question, {})[solution.model] = solution
    whole = [answers for answers in by_question.values() if len(answers) >= 2]
    batch = []
    for answers in rng.sample(whole, questions):
        first, second = list(answers.values())[:2]
        gold, answer = plain(first.gold), first.answer.replace(",", "")
        texts = [plain(first.text), plain(second.text), gold, _poisoned(gold, answer, attack, rng)]
        batch += [
            Completion(first.question, text, node=f"n{i}", reference=answer)
            for i, text in enumerate(texts)
        ]
    return batch


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
    """Combine the verifiers under comparison in one way."""
    return kind(ScreensVerifier(), ArithmeticVerifier(), RecurrenceVerifier(), reference)


def compare(batch: Sequence[Completion], reference: ReferenceLikelihoodVerifier) -> dict[str, Any]:
    """CPU seconds of both forms, the calls of the last member, and the rejections.

    The attacker's is every fourth completion; with no attack it is honest like the others.
    """
    found: dict[str, Any] = {"completions": len(batch)}
    for kind in (Cascade, AllOf):
        verifier, started = stack(kind, reference), time.process_time()
        verdicts = verifier.verify(batch)
        seconds = time.process_time() - started
        asked = sum(any(m.verifier == EXPENSIVE for m in v.members) for v in verdicts)
        by = Counter(m.verifier for v in verdicts for m in v.members if m.rejected)
        found[kind.__name__.lower()] = {
            "cpu_seconds": round(seconds, 1),
            "asked_last_member": asked,
            "first_three_nodes": rejected([v for i, v in enumerate(verdicts) if (i + 1) % NODES]),
            "last_node": rejected(verdicts[NODES - 1 :: NODES]),
            "rejections_by_member": dict(by),
        }
    return found


def measure(data: Path, model: str, questions: int) -> dict[str, Any]:
    """Compute all figures, by attack."""
    reference = ReferenceLikelihoodVerifier.from_pretrained(model, alpha=0.01)
    return {
        name: compare(completions(data, questions, attack, seed=1), reference)
        for name, attack in ATTACKS.items()
    }


if __name__ == "__main__":
    study(
        "cascade",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--model", required=True, metavar="PATH", help="the reference"),
        option("--questions", type=int, default=24),
    )
