"""Which completions go through the body together, and whether they share their prompt's pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.memory import MemoryPlan

# A shared pass saves tokens and costs a pass of its own: below this ratio of tokens, many small
# prompts are faster as rows of one batch.
LEAST_GAIN = 1.25
# Rows shorter than this share of the longest wait for the next batch, unless this one is small.
LEAST_FILL = 0.6
SMALL_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Job:
    """Completions for one pass.

    Args:
        indices: Which ones, longest first.
        shared: They have one prompt, which is run once for all of them.
    """

    indices: tuple[int, ...]
    shared: bool

    def halves(self) -> tuple[Job, ...]:
        middle = (len(self.indices) + 1) // 2
        parts = (self.indices[:middle], self.indices[middle:])
        return tuple(Job(part, self.shared and len(part) > 1) for part in parts if part)


def plan_jobs(sequences: Sequence[Encoded], plan: MemoryPlan, *, share: bool) -> list[Job]:
    """Batches of similar length, within the plan."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, sequence in enumerate(sequences):
        groups[sequence.prompt_ids].append(i)
    jobs: list[Job] = []
    alone: list[int] = []
    for prompt_ids, members in groups.items():
        if share and _gain(len(prompt_ids), [len(sequences[i].completion_ids) for i in members]):
            lengths = {i: len(sequences[i].completion_ids) for i in members}
            jobs += [Job(part, True) for part in _batches(lengths, plan, len(prompt_ids))]
        else:
            alone += members
    lengths = {i: len(sequences[i].prompt_ids) + len(sequences[i].completion_ids) for i in alone}
    return jobs + [Job(part, False) for part in _batches(lengths, plan, 0)]


def _gain(prompt: int, completions: Sequence[int]) -> bool:
    """Whether running the prompt once is worth a pass of its own."""
    rows = len(completions) * prompt + sum(completions)
    return len(completions) > 1 and rows >= LEAST_GAIN * (prompt + sum(completions))


def _batches(
    lengths: dict[int, int], plan: MemoryPlan, shared_tokens: int
) -> Iterator[tuple[int, ...]]:
    batch: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if batch:
            longest, rows = lengths[batch[0]], len(batch) + 1
            full = (
                rows * longest > plan.forward_tokens
                or rows * (longest + shared_tokens) > plan.cache_tokens
            )
            ragged = lengths[i] < LEAST_FILL * longest
            if full or (ragged and len(batch) * longest >= SMALL_BATCH_TOKENS):
                yield tuple(batch)
                batch = []
        batch.append(i)
    if batch:
        yield tuple(batch)
