"""Plan which completions run through the body together, and which share a prompt pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.memory import MemoryPlan

# Sharing a prompt saves tokens but takes a separate pass: below this token ratio, many small
# prompts are faster as rows of one batch.
LEAST_GAIN = 1.25
# Rows shorter than this share of the longest row wait for the next batch, unless the current one is
# small.
LEAST_FILL = 0.6
SMALL_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Job:
    """Completions that run through the body in one pass."""

    indices: tuple[int, ...]  # the completions, longest first
    shared: bool  # whether all have the same prompt, which then runs only once

    def halves(self) -> tuple[Job, ...]:
        middle = (len(self.indices) + 1) // 2
        parts = (self.indices[:middle], self.indices[middle:])
        return tuple(Job(part, self.shared and len(part) > 1) for part in parts if part)


def unscaled_length(config: Any) -> int | None:
    """Return the length up to which rotary frequencies are fixed, or None if they always are.

    "longrope" and "dynamic" choose the frequencies for a whole padded batch based on its longest
    row, so one long hostile completion would change the numbers of every honest completion in its
    batch.
    """
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    settings = settings if isinstance(settings, dict) else {}
    lengths = [getattr(config, "max_position_embeddings", None)]
    depends = False
    # The settings themselves plus, if they are nested, those of each layer type.
    for one in (settings, *(s for s in settings.values() if isinstance(s, dict))):
        kind = str(one.get("rope_type", one.get("type", "")))
        if "dynamic" in kind or kind in ("longrope", "su"):  # "su": the original name of longrope
            depends = True
            lengths.append(one.get("original_max_position_embeddings"))
    lengths.append(getattr(config, "original_max_position_embeddings", None))
    # The smallest length, because longer sequences run alone, which is always correct.
    return min((int(n) for n in lengths if n), default=1) if depends else None


def plan_jobs(
    sequences: Sequence[Encoded], plan: MemoryPlan, *, share: bool, together: int | None = None
) -> list[Job]:
    """Group completions of similar length into batches, within the plan's sizes.

    Args:
        sequences, plan: The completions with their prompts, and the batch sizes.
        share: Whether a group may share one pass over its prompt.
        together: Maximum length of a sequence that may share a batch, if frequencies depend on the
            length (`unscaled_length`); otherwise None. Longer sequences then run alone, and no
            prompt is shared, because its keys would carry the frequencies of another length.
    """
    if together is not None:
        lengths = {i: len(s.prompt_ids) + len(s.completion_ids) for i, s in enumerate(sequences)}
        short = {i: length for i, length in lengths.items() if length <= together}
        lone = [Job((i,), False) for i in lengths if i not in short]
        return lone + [Job(part, False) for part in _batches(short, plan, 0)]
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
    """Whether running the prompt only once is worth a separate pass."""
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
