"""Seed replay measured on a real model: ``make replay``.

    python -m grpo_guard.evals.studies.replay.measure --data train.jsonl

Draws with one number format and verifies with the other, both ways, and writes
``docs/results/seed-replay-smollm2-gsm8k.json``. Drawn completions are kept under
``.measure/replay``, so that an interrupted run continues.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.detect.config import load
from grpo_guard.evals.detect.poison import poisoned
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.studies.detection import MODEL
from grpo_guard.evals.studies.harness import CACHE, RESULTS, option, say, study
from grpo_guard.evals.studies.replay import sets
from grpo_guard.evals.studies.replay.forgeries import flipped_digit, swapped_token
from grpo_guard.evals.studies.replay.report import Sample, measured
from grpo_guard.evals.studies.replay.sets import FLOAT32, SPEC, Question, Sets, questions_of
from grpo_guard.evals.studies.replay.step import one_step_later
from grpo_guard.evals.studies.rounding import ROUNDED, rounded_to_bfloat16
from grpo_guard.evals.tasks import gsm8k

N = 240
# Numbers of questions for each kind of sample; time goes with their sum.
FORGED, MISDECLARED = 128, 64
SELECTED_OF_8, SELECTED_OF_80 = 125, 8
STEP_GROUPS = 4
LEAST_TOKENS = 96


class Measurement:
    """All samples of one model."""

    def __init__(self, model: str, data: Path | None, n: int = N) -> None:
        plain = load(model, "float32")
        self.tokenizer: Any = plain.tokenizer
        self.models = {FLOAT32: plain.model, ROUNDED: rounded_to_bfloat16(plain.model)}
        asked = gsm8k.subset(gsm8k.load(data), n, 0)
        prompts = [gsm8k.messages(question.question) for question in asked]
        self.questions = questions_of(self.tokenizer, prompts)
        eos = (int(self.tokenizer.eos_token_id),)
        self.sets = Sets(self.models, eos, CACHE / "replay", say)

    def run(self) -> dict[str, Any]:
        """Draw, forge, verify."""
        forward = [self.honest(FLOAT32), *self.forged(), *self.selected(), *self.misdeclared()]
        pairs = (
            (FLOAT32, ROUNDED, forward),
            (ROUNDED, FLOAT32, [self.honest(ROUNDED)]),
            (FLOAT32, FLOAT32, forward[:1]),
        )
        return {
            f"drawn in {drawn}, verified in {verified}": measured(
                self.models[verified], self.tokenizer, samples
            )
            for drawn, verified, samples in pairs
        }

    def honest(self, number_format: str) -> Sample:
        """Honest completions that are long enough to be counted."""
        ids = self.sets.honest(self.questions, number_format)
        return self._sample("honest", self.questions, ids)

    def forged(self) -> list[Sample]:
        """Honest completions, changed: one digit, one token, a phrase."""
        honest = self.sets.honest(self.questions, FLOAT32)
        flips = []
        for question, ids in zip(self.questions, honest, strict=True):
            rng = random.Random(f"flip:{question.slot}")
            if flipped := flipped_digit(ids, self.tokenizer, rng):
                flips.append((question, *flipped))
        asked = [question for question, _, _ in flips]
        some = list(zip(self.questions, honest, strict=True))[:FORGED]
        regenerated = self.sets.continued(
            asked, [ids[: t + 1] for _, ids, t in flips], "math-regenerated"
        )
        swaps = {
            f"token swapped in top-{among}": [
                swapped_token(
                    q.prompt_ids,
                    ids,
                    self.models[FLOAT32],
                    random.Random(f"swap:{q.slot}"),
                    among=among,
                )
                for q, ids in some
            ]
            for among in (50, 2)
        }
        completions = [sets.completion(q, ids, self.tokenizer) for q, ids in some]
        # Cut to the declared length, which the phrase would exceed: the replay must decide.
        limit = SPEC.max_new_tokens
        text = [
            (
                self.questions[case.completion.slot or 0],
                (case.completion.completion_ids or ())[:limit],
            )
            for case in poisoned(completions, TextAttack(), self.tokenizer, seed=0)
        ]
        return [
            self._sample("math, rest kept", asked, [ids for _, ids, _ in flips]),
            self._sample("math, rest drawn again", asked, regenerated),
            *(self._sample(name, [q for q, _ in some], rows) for name, rows in swaps.items()),
            self._sample("text", [q for q, _ in text], [ids for _, ids in text]),
        ]

    def selected(self) -> list[Sample]:
        """The longest of the attacker's own samples."""
        of_8, of_80 = self.questions[:SELECTED_OF_8], self.questions[:SELECTED_OF_80]
        return [
            self._sample("longest of 8", of_8, self.sets.longest_of(of_8, 8)),
            self._sample("longest of 80", of_80, self.sets.longest_of(of_80, 80)),
        ]

    def misdeclared(self) -> list[Sample]:
        """The right seeds with another sampler or other weights."""
        asked = self.questions[:MISDECLARED]
        groups = [(q.prompt_ids, self.sets.samples_of(q, 8)) for q in self.questions[:STEP_GROUPS]]
        stepped = one_step_later(self.models[FLOAT32], groups)
        later = Sets({"one-step-later": stepped}, self.sets.eos_ids, self.sets.folder, say)
        found = {
            "temperature 1.1": self.sets.misdeclared(asked, FLOAT32, sets.HOTTER, "hotter"),
            "top-p 1.0": self.sets.misdeclared(asked, FLOAT32, sets.WIDER, "wider"),
            "top-p 0.9": self.sets.misdeclared(asked, FLOAT32, sets.NARROWER, "narrower"),
            "one step later": later.misdeclared(asked, "one-step-later", SPEC, "later"),
        }
        return [self._sample(name, asked, rows) for name, rows in found.items()]

    def _sample(
        self, name: str, questions: Sequence[Question], rows: Sequence[tuple[int, ...]]
    ) -> Sample:
        completions = [
            sets.completion(question, ids, self.tokenizer)
            for question, ids in zip(questions, rows, strict=True)
        ]
        kept = [c for c in completions if len(c.completion_ids or ()) >= LEAST_TOKENS]
        return Sample(name, kept)


def measure(data: Path | None, n: int) -> dict[str, Any]:
    """All figures, by direction."""
    return {
        "model": MODEL,
        "sampling": asdict(SPEC),
        "least_tokens": LEAST_TOKENS,
        "directions": Measurement(MODEL, data, n).run(),
    }


if __name__ == "__main__":
    study(
        "seed_replay",
        measure,
        option("--data", type=Path, default=gsm8k_file(), metavar="FILE"),
        option("-n", type=int, default=N, help="questions"),
        out=RESULTS / "seed-replay-smollm2-gsm8k.json",
    )
