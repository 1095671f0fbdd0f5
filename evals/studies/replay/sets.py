"""The completions to measure: honest ones, and those from two kinds of attackers.

A node's slot has one seed, which the honest completion is drawn with. A *selecting* attacker draws
many completions with its own seeds and sends the longest; *misdeclaring* nodes use the right seed
with a different temperature, nucleus or checkpoint. Each completion is kept on disk once drawn.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import Message
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.sample import decode, encode_prompt
from grpo_guard.evals.progress import Say
from grpo_guard.evals.studies.rounding import ROUNDED
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin

COIN = PublicCoin("seed-replay")
ELSEWHERE = PublicCoin("samples of the attacker's own")
NODE, ROUND = "node-0", 0
SPEC = SamplingSpec("transformers", 1.0, 50, 0.95, max_new_tokens=160)
FLOAT32 = "float32"
# Completions per batch; the number differs by number format, so that batches differ as well.
BATCH = {FLOAT32: 16, ROUNDED: 24}
SELECTING_BATCH = 32
# Prompts are sorted by length only within a block, so that early batches are a mix of questions.
BATCHES_PER_BLOCK = 4


@dataclass(frozen=True, slots=True)
class Question:
    """One of the node's slots: its prompt as messages and as ids, plus its seed."""

    slot: int
    prompt: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    seed: int


def questions_of(tokenizer: Any, prompts: Sequence[tuple[Message, ...]]) -> list[Question]:
    """Assign the prompts to slots 0, 1, ... in order."""
    return [
        Question(
            slot,
            prompt,
            encode_prompt(tokenizer, prompt),
            COIN.seed(round=ROUND, node=NODE, slot=slot, prompt=prompt),
        )
        for slot, prompt in enumerate(prompts)
    ]


@dataclass(frozen=True, slots=True)
class Draw:
    """A completion to be drawn: key within the set, prompt, seed, and the tokens it begins with."""

    key: str
    prompt_ids: tuple[int, ...]
    seed: int
    prefix: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """Digest identifying the draw in the cache."""
        return _digest([self.prompt_ids, self.seed, self.prefix], 16)


@dataclass(frozen=True, slots=True)
class Sets:
    """Draws sets of completions from models by number format; keeps all of them in ``folder``."""

    models: Mapping[str, Any]
    eos_ids: tuple[int, ...]
    folder: Path
    say: Say

    def honest(self, questions: Sequence[Question], number_format: str) -> list[tuple[int, ...]]:
        """Draw the honest completion of each slot."""
        return self.misdeclared(questions, number_format, SPEC, "honest")

    def misdeclared(
        self, questions: Sequence[Question], number_format: str, spec: SamplingSpec, name: str
    ) -> list[tuple[int, ...]]:
        """Draw with each slot's seed, but under any sampler and from any weights."""
        draws = [Draw(str(q.slot), q.prompt_ids, q.seed) for q in questions]
        size = BATCH.get(number_format, 16)
        found = self.drawn(f"{name}-{number_format}", draws, number_format, spec, size)
        return [found[str(q.slot)] for q in questions]

    def continued(
        self, questions: Sequence[Question], prefixes: Sequence[tuple[int, ...]], name: str
    ) -> list[tuple[int, ...]]:
        """Force the given beginnings and draw the rest under the coin."""
        draws = [
            Draw(f"{q.slot}", q.prompt_ids, q.seed, prefix)
            for q, prefix in zip(questions, prefixes, strict=True)
        ]
        found = self.drawn(name, draws)
        return [found[d.key] for d in draws]

    def samples(self, questions: Sequence[Question], n: int) -> list[list[tuple[int, ...]]]:
        """Draw ``n`` samples for each slot with the attacker's own seeds."""
        draws = [
            Draw(
                f"{q.slot}/{i}", q.prompt_ids,
                ELSEWHERE.seed(round=i, node=NODE, slot=q.slot, prompt=q.prompt),
            )
            for q in questions
            for i in range(n)
        ]  # fmt: skip
        found = self.drawn(f"longest-of-{n}", draws, batch_size=SELECTING_BATCH)
        return [[found[f"{q.slot}/{i}"] for i in range(n)] for q in questions]

    def longest_of(self, questions: Sequence[Question], n: int) -> list[tuple[int, ...]]:
        """Return, for each slot, the longest of ``n`` samples of the attacker's own."""
        return [max(rows, key=len) for rows in self.samples(questions, n)]

    def drawn(
        self,
        name: str,
        draws: Sequence[Draw],
        number_format: str = FLOAT32,
        spec: SamplingSpec = SPEC,
        batch_size: int = 16,
    ) -> dict[str, tuple[int, ...]]:
        """Return completions as token ids by key; finished ones are read from the set's file."""
        source = _digest([number_format, asdict(spec), self.eos_ids], 12)
        path = self.folder / f"{name}-{source}.jsonl"
        known = _read(path)
        found = {d.key: known[d.digest] for d in draws if d.digest in known}
        for batch in _batches([d for d in draws if d.key not in found], batch_size):
            rows = generate_under_coin(
                self.models[number_format],
                [d.prompt_ids for d in batch],
                [d.seed for d in batch],
                spec,
                eos_ids=self.eos_ids,
                prefixes=[d.prefix for d in batch],
            )
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                for draw, ids in zip(batch, rows, strict=True):
                    file.write(json.dumps({"digest": draw.digest, "ids": ids}) + "\n")
                    found[draw.key] = ids
            self.say(name, len(found), len(draws))
        return found


def completion(question: Question, ids: tuple[int, ...], tokenizer: Any) -> Completion:
    """Build the completion that the node sends for a slot."""
    return Completion(
        question.prompt,
        decode(tokenizer, ids),
        prompt_ids=question.prompt_ids,
        completion_ids=ids,
        node=NODE,
        round=ROUND,
        slot=question.slot,
    )


HOTTER = replace(SPEC, temperature=1.1)
WIDER = replace(SPEC, top_p=1.0)
NARROWER = replace(SPEC, top_p=0.9)


def _batches(draws: Sequence[Draw], size: int) -> Iterator[list[Draw]]:
    block = size * BATCHES_PER_BLOCK
    for start in range(0, len(draws), block):
        part = sorted(draws[start : start + block], key=lambda d: len(d.prompt_ids + d.prefix))
        for at in range(0, len(part), size):
            yield part[at : at + size]


def _read(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the finished completions, skipping any line left half-written by a killed run."""
    if not path.is_file():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
            found[row["digest"]] = tuple(row["ids"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _digest(values: Any, length: int) -> str:
    return hashlib.sha256(json.dumps(values, default=list).encode()).hexdigest()[:length]
