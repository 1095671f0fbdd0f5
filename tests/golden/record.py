"""Golden outcomes: the results of today's code, against which refactorings are compared.

    python -m tests.golden.record            # compare with the golden files
    python -m tests.golden.record --write    # accept today's results; say why in the commit

``CORPUS.jsonl`` holds each verifier's outcome, cause, kinds and spans for each completion that is
not plainly accepted, by index; ``settled.jsonl`` what a grid of rewards and verdicts earns under
every policy (`settled_grid`). Corpora under ``../shared/data`` are skipped if absent;
their texts are never copied here.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpo_guard import AllOf, Completion, CompletionVerifier, Verdict
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.tasks import word_problems
from tests.golden.settled import settled_grid

HERE = Path(__file__).parent
SHARED = Path("../shared/data")
PROGRAMS = HERE.parent / "content" / "programs"

Batches = list[list[Completion]]

VERIFIERS: dict[str, Callable[[], CompletionVerifier]] = {
    "arithmetic": ArithmeticVerifier,
    "code": CodeVerifier,
    "screens": ScreensVerifier,
    "answer_words": AnswerWordsVerifier,
    "length": LengthVerifier,
    "recurrence": RecurrenceVerifier,
    "stack": lambda: AllOf(ScreensVerifier(), ArithmeticVerifier(), CodeVerifier()),
}


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.open(encoding="utf-8")]


def by_round(rows: list[Completion]) -> Batches:
    """One batch per round, in the order in which rounds first appear."""
    found: dict[int | None, list[Completion]] = {}
    for row in rows:
        found.setdefault(row.round, []).append(row)
    return list(found.values())


def modern(name: str) -> Batches:
    return by_round([Completion.from_dict(row) for row in lines_of(SHARED / "modern" / name)])


def authors() -> Batches:
    rows = lines_of(SHARED / "httt" / "math_poison.jsonl")
    return [[Completion.from_dict({k: v for k, v in r.items() if k != "split"}) for r in rows]]


def gsm8k() -> Batches:
    rows = lines_of(SHARED / "gsm8k" / "model_solutions.jsonl")
    questions = {q: i for i, q in enumerate(dict.fromkeys(r["question"] for r in rows))}
    return by_round([
        Completion(
            r["question"], r["completion"], node=r["model"], round=questions[r["question"]] // 8,
            reference=r["ground_truth"].rsplit("A:", 1)[-1].strip(),
        )
        for r in rows
    ])  # fmt: skip


def programs() -> Batches:
    files = sorted(PROGRAMS.glob("*.jsonl"))
    return [[Completion("Write it.", r["text"], task="code") for r in lines_of(f)] for f in files]


def screens_corpus() -> Batches:
    corpus = json.loads((HERE.parent / "content" / "screens_corpus.json").read_text("utf-8"))
    question = "Janet has 5 apples and buys 3 more. How many apples does she have?"
    return [
        [Completion(question, text) for _, text in [*corpus["attacks"], *corpus["passed"]]],
        [Completion(prompt, text) for prompt, text in corpus["honest"]],
    ]


def bundled() -> Batches:
    """Groups of eight from four nodes on the bundled task; node n3 sends an attack's poison."""
    rng = random.Random(0)
    task, attacks = word_problems.WordProblems(), [TextAttack(), MathAttack(), CodeAttack()]
    batches: Batches = []
    for number in range(12):
        batch = []
        for group in range(4):
            problem = task.sample(rng)
            for slot in range(8):
                text = problem.solution
                if slot % 4 == 3 and number % 2:
                    text = attacks[number // 2 % 3].poison(problem, rng).text
                batch.append(
                    Completion(
                        problem.prompt, text, reference=problem.answer, node=f"n{slot % 4}",
                        group=group, slot=slot, round=number,
                    )
                )  # fmt: skip
        batches.append(batch)
    return batches


CORPORA: dict[str, Callable[[], Batches]] = {
    "programs": programs,
    "screens_corpus": screens_corpus,
    "bundled": bundled,
    "httt": authors,
    "gsm8k": gsm8k,
    "modern_math": lambda: modern("math.jsonl"),
    "modern_min": lambda: modern("min.jsonl"),
    "modern_oly": lambda: modern("oly.jsonl"),
}


def written(name: str, place: int, verdict: Verdict) -> list[Any]:
    found = [[f.kind, *(f.char_span or ())] for f in verdict.findings]
    return [name, place, verdict.outcome.value, verdict.cause.value, found]


def verdicts(batches: Batches) -> Iterator[list[Any]]:
    """One row per verifier and completion, except acceptances without a finding."""
    for name, make in VERIFIERS.items():
        verifier, place = make(), 0
        for batch in batches:
            for verdict in verifier.verify(batch):
                if not verdict.accepted or verdict.findings:
                    yield written(name, place, verdict)
                place += 1


def corpora() -> Iterator[tuple[str, Batches]]:
    """The corpora available here."""
    for name, read in CORPORA.items():
        try:
            yield name, read()
        except FileNotFoundError:
            print(f"{name}: absent, skipped", file=sys.stderr)


def golden(name: str) -> list[str]:
    """Render the lines of a golden file."""
    return (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()


def recorded() -> Iterator[tuple[str, list[str]]]:
    """Yield (name of a golden file, its lines) for today's code."""
    yield "settled", [json.dumps(row) for row in settled_grid()]
    for corpus, batches in corpora():
        yield corpus, [json.dumps(row) for row in verdicts(batches)]


def main(write: bool) -> int:
    different = 0
    for name, lines in recorded():
        if write:
            text = "".join(f"{line}\n" for line in lines)
            (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")
            continue
        old = golden(name)
        changed = [f"- {line}" for line in old if line not in set(lines)]
        changed += [f"+ {line}" for line in lines if line not in set(old)]
        different += len(changed)
        print(f"{name}: {len(changed)} lines differ", *changed[:40], sep="\n  ")
    return min(different, 1)


if __name__ == "__main__":
    raise SystemExit(main("--write" in sys.argv[1:]))
