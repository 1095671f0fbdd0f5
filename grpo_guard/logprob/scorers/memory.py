"""Turn a byte budget into batches of completions, and recognise out-of-memory errors."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.head_stats import WORKSPACE_PER_ROW
from grpo_guard.logprob.kernels.tiled import EAGER_CPU_TILE, TILE
from grpo_guard.logprob.stats import MOST_LEADERS

LARGEST_DEFAULT = 4 * 2**30
FEWEST_HEAD_ROWS = 16
MOST_HEAD_ROWS = {"cpu": 512, "cuda": 8192}  # more rows would not make the product any faster
# Sharing a prompt saves tokens but takes a separate pass: below this token ratio, many small
# prompts are faster as rows of one batch.
LEAST_GAIN = 1.25
# Rows shorter than this share of the longest row wait for the next batch, unless the current one is
# small.
LEAST_FILL = 0.6
SMALL_BATCH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Batch sizes estimated to keep a pass within its memory budget."""

    forward_tokens: int  # padded tokens in one forward pass of the body
    cache_tokens: int  # tokens, prompts included, whose keys and values exist at the same time
    head_rows: int  # rows sharing a tile of scores
    strict: bool  # whether the user set the budget; work estimated to exceed it is then refused

    @classmethod
    def of(cls, model: Any, budget: int | None) -> "MemoryPlan":
        """Allot half of the budget to the body's activations, and a quarter each to cache and head.
        It is in bytes on top of the weights; None for a quarter of free memory, up to 4 GiB."""
        weight = model.get_input_embeddings().weight
        total = budget or _default_budget(weight.device)
        size, config = weight.element_size(), model.config.get_text_config()
        hidden = int(config.hidden_size)
        inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
        # Eight of the hidden width: the input, the residual, the normalised states, attention's
        # four projections and its result. Three of the inner width, in the MLP.
        activations = size * (8 * hidden + 3 * inner)
        # Eager sums keep a dozen tiles; compiled sums with oneDNN products need three smaller ones.
        vocab_size = len(weight)
        tiles = min(TILE, vocab_size) if weight.is_cuda else 12 * min(EAGER_CPU_TILE, vocab_size)
        row = 4 * (tiles + min(MOST_LEADERS, vocab_size) + 2 * hidden)
        if weight.is_cuda:
            row += WORKSPACE_PER_ROW
        most_rows = MOST_HEAD_ROWS.get(weight.device.type, MOST_HEAD_ROWS["cpu"])
        return cls(
            forward_tokens=max(1, total // 2 // activations),
            cache_tokens=max(1, total // 4 // _cache_bytes(config, size)),
            head_rows=max(1, min(most_rows, total // 4 // row)),
            strict=budget is not None,
        )

    def halved(self) -> "MemoryPlan":
        """Return the plan to try after running out of memory."""
        return replace(
            self,
            forward_tokens=max(1, self.forward_tokens // 2),
            cache_tokens=max(1, self.cache_tokens // 2),
            head_rows=max(1, self.head_rows // 2),
        )


def _cache_bytes(config: Any, size: int) -> int:
    """Return the bytes per token of keys and values, doubled because a growing cache is copied."""
    heads = int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return 2 * 2 * int(config.num_hidden_layers) * kv_heads * width * size


def _default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):  # not every system reports free memory
            free = LARGEST_DEFAULT
    return max(2**26, min(LARGEST_DEFAULT, free // 4))


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is a failed allocation; CPU and CUDA report it differently."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # If a GPU has no room for a context, torch raises an error with the last of these messages
    # instead of OutOfMemoryError.
    messages = ("can't allocate memory", "not enough memory", "CUDA error: out of memory")
    return isinstance(error, RuntimeError) and any(message in str(error) for message in messages)


def release_cached_memory() -> None:
    """Free the memory cached by torch's CUDA allocator, to make room for a smaller attempt."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Job:
    """Completions that run through the body in one pass."""

    indices: tuple[int, ...]  # the completions, longest first
    shared: bool  # whether all have the same prompt, which then runs only once

    def halves(self) -> tuple["Job", ...]:
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

    If frequencies depend on the length, sequences longer than ``together`` (`unscaled_length`) run
    alone, and no prompt is shared, because its keys would carry another length's frequencies.
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
