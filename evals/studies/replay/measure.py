"""Seed replay measured on a real model: ``make replay``.

    python -m grpo_guard.evals.studies.replay.measure --data train.jsonl

Draws with one number format and verifies with another, in both directions, and writes
``docs/results/seed-replay-smollm2-gsm8k.json``. Drawn completions are kept under
``.measure/replay``, so that an interrupted run can resume.
"""

import copy
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_guard.core.completion import Completion
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.detect.config import load
from grpo_guard.evals.detect.poison import poisoned
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.studies.detection import MODEL
from grpo_guard.evals.studies.harness import CACHE, RESULTS, option, rejected, say, study
from grpo_guard.evals.studies.replay import sets
from grpo_guard.evals.studies.replay.forgeries import flipped_digit, swapped_token
from grpo_guard.evals.studies.replay.sets import COIN, FLOAT32, SPEC, Question, Sets, questions_of
from grpo_guard.evals.studies.rounding import ROUNDED, rounded_to_bfloat16
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.evals.tasks import gsm8k
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16, DriftProfile
from grpo_guard.logprob.replay.evidence import ReplayEvidence, weigh_replay
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier

N = 240
# Numbers of questions for each kind of sample; the time needed is proportional to their sum.
FORGED, MISDECLARED = 128, 64
SELECTED_OF_8, SELECTED_OF_80 = 125, 8
STEP_GROUPS = 4
LEAST_TOKENS = 96
LEARNING_RATE = 1e-6  # TRL's default
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """The completions of one kind, by name."""

    name: str
    completions: Sequence[Completion]


def measured(
    model: Any, tokenizer: Any, samples: Sequence[Sample], profile: DriftProfile = BFLOAT16
) -> dict[str, Any]:
    """Verify all samples, the first of which is the honest one, with one number format.

    ``margins`` counts the honest tokens whose excess is at least each margin, or above 0 for 0.
    """
    scorer = SharedScores(model)
    found = dict[str, Any]()
    for sample in samples:
        # A new verifier for each sample, because all samples fill the same slots.
        verifier = SeedReplayVerifier(
            tokenizer=tokenizer, scorer=scorer, sampling=SPEC, coin=COIN, profile=profile
        )
        found[sample.name] = rejected(verifier.verify(sample.completions))
    honest = _weighed(scorer, samples[0].completions, profile)
    excess = np.concatenate([e.excess for e in honest])
    margins = {m: int((excess >= m).sum() if m else (excess > 0).sum()) for m in MARGINS}
    matches = sum(e.informative_matches for e in honest)
    return {
        "profile": profile.name,
        "tokens": len(excess),
        "match_rate": matches / sum(int(e.informative.sum()) for e in honest),
        "margins": {f"{m:g}": count for m, count in margins.items()},
        "samples": found,
    }


def _weighed(
    scorer: SharedScores, completions: Sequence[Completion], profile: DriftProfile
) -> list[ReplayEvidence]:
    encoded = [
        Encoded(
            c.prompt_ids or (),
            c.completion_ids or (),
            False,
            COIN.seed(round=c.round or 0, node=c.node or "", slot=c.slot or 0, prompt=c.prompt),
        )
        for c in completions
    ]
    stats = scorer.score(encoded, SPEC, mass_margin=profile.mass_margin, replay=Replay())
    return [weigh_replay(one, profile) for one in stats]


def one_step_later(
    model: Any, groups: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]
) -> Any:
    """Copy the model and take one AdamW step that rewards the shorter completions in each group.

    Adam's first step moves every weight by about the learning rate, no matter what the rewards are.
    A group is (prompt, completions) as token ids, with completions of at least two lengths.
    """
    stepped = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(stepped.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for prompt, completions in groups:
        rewards = torch.tensor([-float(len(ids)) for ids in completions])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for ids, advantage in zip(completions, advantages.tolist(), strict=True):
            (-advantage * _log_probs(stepped, prompt, ids).mean()).backward()
    optimizer.step()
    stepped.zero_grad(set_to_none=True)
    return stepped


def _log_probs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """Return the log-probs of a completion's tokens, [n]."""
    tokens = torch.tensor([[*prompt, *ids]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen: Tensor = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return chosen


class Measurement:
    """The measurement of all samples from one model."""

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
        """Draw, forge and verify all samples."""
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
        """Return the honest completions that are long enough to count."""
        ids = self.sets.honest(self.questions, number_format)
        return self._sample("honest", self.questions, ids)

    def forged(self) -> list[Sample]:
        """Return honest completions with a changed digit, a changed token or an inserted phrase."""
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
        model = self.models[FLOAT32]
        swaps = {
            f"token swapped in top-{among}": [
                swapped_token(
                    q.prompt_ids, ids, model, random.Random(f"swap:{q.slot}"), among=among
                )
                for q, ids in some
            ]
            for among in (50, 2)
        }
        completions = [sets.completion(q, ids, self.tokenizer) for q, ids in some]
        # Cut to the declared length, so that the replay decides rather than the added length.
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
        """Return the longest of several samples drawn by the attacker."""
        of_8, of_80 = self.questions[:SELECTED_OF_8], self.questions[:SELECTED_OF_80]
        return [
            self._sample("longest of 8", of_8, self.sets.longest_of(of_8, 8)),
            self._sample("longest of 80", of_80, self.sets.longest_of(of_80, 80)),
        ]

    def misdeclared(self) -> list[Sample]:
        """Return completions with the right seeds but a different sampler or weights."""
        asked = self.questions[:MISDECLARED]
        some = self.questions[:STEP_GROUPS]
        drawn = self.sets.samples(some, 8)
        groups = [(q.prompt_ids, rows) for q, rows in zip(some, drawn, strict=True)]
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
    """Compute all figures, by direction."""
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
