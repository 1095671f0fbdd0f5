"""The completions that the measurement is about: honest ones, and whole completions of others.

A node's slot has one seed. The honest completion is drawn with it; the *selecting* attacker draws
many with seeds of its own and sends the longest; *misdeclaring* nodes use the right seed with
another temperature, nucleus or checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import Message
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.sample import decode, encode_prompt
from grpo_guard.evals.studies.replay.under_coin import Draw, Say, Source, drawn
from grpo_guard.evals.studies.rounding import ROUNDED
from grpo_guard.logprob.coin import PublicCoin

COIN = PublicCoin("seed-replay")
ELSEWHERE = PublicCoin("samples of the attacker's own")
NODE, ROUND = "node-0", 0
SPEC = SamplingSpec("transformers", 1.0, 50, 0.95, max_new_tokens=160)
FLOAT32 = "float32"
# How many at once; another one for each number format, so that batches differ as well.
BATCH = {FLOAT32: 16, ROUNDED: 24}
SELECTING_BATCH = 32


@dataclass(frozen=True, slots=True)
class Question:
    """One slot of the node: its prompt as messages and as ids, and its seed."""

    slot: int
    prompt: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    seed: int


def questions_of(tokenizer: Any, prompts: Sequence[tuple[Message, ...]]) -> list[Question]:
    """Slots 0, 1, ... for the prompts in their order."""
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
class Sets:
    """Draws the sets; everything is kept in ``folder``.

    Args:
        models: The policy by number format.
        eos_ids: Tokens that end a completion.
        folder: Where drawn completions are kept.
        say: Progress.
    """

    models: Mapping[str, Any]
    eos_ids: tuple[int, ...]
    folder: Path
    say: Say

    def honest(self, questions: Sequence[Question], number_format: str) -> list[tuple[int, ...]]:
        """The one honest completion of each slot."""
        return self.misdeclared(questions, number_format, SPEC, "honest")

    def misdeclared(
        self, questions: Sequence[Question], number_format: str, spec: SamplingSpec, name: str
    ) -> list[tuple[int, ...]]:
        """Draw with the slot's seed and any sampler or weights."""
        draws = [Draw(str(q.slot), q.prompt_ids, q.seed) for q in questions]
        source = self._source(number_format, spec, BATCH.get(number_format, 16))
        found = drawn(f"{name}-{number_format}", draws, source, self.folder, self.say)
        return [found[str(q.slot)] for q in questions]

    def continued(
        self, questions: Sequence[Question], prefixes: Sequence[tuple[int, ...]], name: str
    ) -> list[tuple[int, ...]]:
        """Force the beginnings and draw the rest under the coin."""
        draws = [
            Draw(f"{q.slot}", q.prompt_ids, q.seed, prefix)
            for q, prefix in zip(questions, prefixes, strict=True)
        ]
        found = drawn(name, draws, self._source(FLOAT32, SPEC, 16), self.folder, self.say)
        return [found[d.key] for d in draws]

    def longest_of(self, questions: Sequence[Question], n: int) -> list[tuple[int, ...]]:
        """Return the longest of ``n`` of the attacker's own honest samples for each slot."""
        return [max(rows, key=len) for rows in self._samples(questions, n)]

    def samples_of(self, question: Question, n: int) -> list[tuple[int, ...]]:
        """``n`` samples of the attacker's own for one slot."""
        return self._samples([question], n)[0]

    def _samples(self, questions: Sequence[Question], n: int) -> list[list[tuple[int, ...]]]:
        draws = [
            Draw(f"{q.slot}/{i}", q.prompt_ids, self._own_seed(q, i))
            for q in questions
            for i in range(n)
        ]
        source = self._source(FLOAT32, SPEC, SELECTING_BATCH)
        found = drawn(f"longest-of-{n}", draws, source, self.folder, self.say)
        return [[found[f"{q.slot}/{i}"] for i in range(n)] for q in questions]

    def _own_seed(self, question: Question, i: int) -> int:
        return ELSEWHERE.seed(round=i, node=NODE, slot=question.slot, prompt=question.prompt)

    def _source(self, number_format: str, spec: SamplingSpec, batch_size: int) -> Source:
        return Source(number_format, self.models[number_format], spec, self.eos_ids, batch_size)


def completion(question: Question, ids: tuple[int, ...], tokenizer: Any) -> Completion:
    """What the node sends for its slot."""
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
