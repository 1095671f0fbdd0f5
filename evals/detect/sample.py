"""Honest completions from a transformers model, with a declared sampler and a resumable cache.

Every setting of the sampler is passed explicitly. Otherwise, ``model.generate`` would fill in unset
ones from the model's own ``generation_config``, and a verifier that goes by the declared settings
would reject honest work.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.arguments import require_count
from grpo_guard.core.completion import Completion, CompletionError
from grpo_guard.core.prompts import Message
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.progress import Say

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

# Prompts are sorted by length within blocks of this many batches. This keeps padding short, while
# still giving the first batches a fair mix of prompts.
BATCHES_PER_BLOCK: Final = 4
DEFAULT_MAX_NEW_TOKENS: Final = 192


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, as text or as chat messages; ``index`` is its position in the data set."""

    index: int
    prompt: str | tuple[Message, ...]
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """Everything that determines the completions; the cache's key is a digest of these settings.

    Args:
        model: Name or path of the model, for the key and the records.
        spec: The declared sampler; its engine must be ``"transformers"``.
        seed: Seed of the whole run, from which each batch's seed is derived.
        batch_size: Number of completions generated at once. Part of the key, because it affects the
            random numbers.
        dtype: Type of the weights while generating, ``"float32"`` or ``"bfloat16"``.
        min_tokens: Minimum number of tokens, EOS included. Shorter completions are kept in the
            cache but not returned. Not part of the key.
    """

    model: str
    spec: SamplingSpec
    seed: int = 0
    batch_size: int = 16
    dtype: str = "float32"
    min_tokens: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that would make the completions dishonest."""
        if self.spec.engine != "transformers":
            raise ValueError(f"spec.engine: expected 'transformers', got {self.spec.engine!r}")
        require_count("batch_size", self.batch_size)

    @property
    def key(self) -> str:
        """A short digest of all settings that determine the completions."""
        fields = asdict(self)
        del fields["min_tokens"]
        text = json.dumps(fields, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def sample_honest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    config: SampleConfig,
    *,
    wanted: int | None = None,
    cache: Path | None = None,
    progress: Say | None = None,
) -> list[Completion]:
    """Sample one completion per prompt until ``wanted`` of them have ``config.min_tokens`` tokens.

    On the same machine with the same number of threads, identical arguments produce identical
    completions, even if a run was interrupted: batches are fixed, and each has its own seed.

    Args:
        model: The model, in evaluation mode and already in ``config.dtype``.
        tokenizer: The model's tokenizer; needs a chat template if prompts are messages.
        wanted: Maximum number of completions. Defaults to one per prompt.
        cache: JSONL file of finished batches, which is read and appended to.
        progress: Called after each batch with the completions that count so far, and those wanted.
    """
    goal = len(prompts) if wanted is None else min(wanted, len(prompts))
    known = read_cache(cache, config.key) if cache else {}
    kept: list[Completion] = []
    for number, batch in enumerate(_batches(tokenizer, prompts, config)):
        if len(kept) >= goal:
            break
        cached = [known.get(prompt.index) for prompt, _ in batch]
        fresh = [c for c, (p, _) in zip(cached, batch, strict=True) if c and c.prompt == p.prompt]
        if len(fresh) < len(batch):
            fresh = _generate(model, tokenizer, batch, config, number)
            if cache:
                append_cache(cache, fresh)
        kept += [c for c in fresh if len(c.completion_ids or ()) >= config.min_tokens]
        if progress:
            progress(min(len(kept), goal), goal)
    return kept[:goal]


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message]
) -> tuple[int, ...]:
    """Return the prompt's token ids; messages go through the tokenizer's chat template."""
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt))
    ids = tokenizer.apply_chat_template(
        [dict(message) for message in prompt],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return tuple(ids)


def _batches(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], config: SampleConfig
) -> Iterator[list[tuple[Prompt, tuple[int, ...]]]]:
    """Yield batches of (prompt, its token ids); prompts in a batch have similar lengths."""
    block = config.batch_size * BATCHES_PER_BLOCK
    for start in range(0, len(prompts), block):
        pairs = [(p, encode_prompt(tokenizer, p.prompt)) for p in prompts[start : start + block]]
        pairs.sort(key=lambda pair: len(pair[1]))
        for at in range(0, len(pairs), config.batch_size):
            yield pairs[at : at + config.batch_size]


def generation_config(spec: SamplingSpec, *, eos: Sequence[int], pad: int) -> GenerationConfig:
    """Return the ``generate`` settings that ``spec`` declares, leaving no option at its default."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True,
        num_beams=1,
        temperature=spec.temperature,
        top_k=spec.top_k,
        top_p=spec.top_p,
        min_p=spec.min_p if spec.min_p > 0 else None,
        typical_p=1.0,
        repetition_penalty=spec.repetition_penalty,
        max_new_tokens=spec.max_new_tokens or DEFAULT_MAX_NEW_TOKENS,
        eos_token_id=list(eos),
        pad_token_id=pad,
    )


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: Sequence[tuple[Prompt, tuple[int, ...]]],
    config: SampleConfig,
    number: int,
) -> list[Completion]:
    """Sample one completion for each prompt in a batch; prompts are padded on the left."""
    import torch

    from grpo_guard.logprob.replay.generate import only_these_settings, until_eos
    from grpo_guard.logprob.scorers.forward import left_padded

    eos = config.spec.eos_token_ids or (int(tokenizer.eos_token_id),)
    pad = eos[0] if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    ids, mask = left_padded([tokens for _, tokens in batch], pad, model.device)
    with torch.random.fork_rng(), torch.inference_mode(), only_these_settings(model):
        torch.manual_seed(_batch_seed(config.seed, number))
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=generation_config(config.spec, eos=eos, pad=pad),
        )
    rows = output[:, ids.shape[1] :].tolist()
    return [
        _completion(tokenizer, prompt, prompt_ids, until_eos(row, eos), config)
        for (prompt, prompt_ids), row in zip(batch, rows, strict=True)
    ]


def _batch_seed(seed: int, number: int) -> int:
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _completion(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    prompt_ids: tuple[int, ...],
    ids: tuple[int, ...],
    config: SampleConfig,
) -> Completion:
    limit = config.spec.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    eos = config.spec.eos_token_ids or (int(tokenizer.eos_token_id),)
    return Completion(
        prompt.prompt,
        decode(tokenizer, ids),
        prompt_ids=prompt_ids,
        completion_ids=ids,
        reference=prompt.reference,
        finish_reason="stop" if ids[-1] in eos or len(ids) < limit else "length",
        metadata={"question": prompt.index, "seed": config.seed, "key": config.key},
    )


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of ``ids`` as a reward function sees it: without special tokens."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)


def to_dict(completion: Completion) -> dict[str, Any]:
    """Return a completion as JSON that `Completion.from_dict` reads, without empty fields."""
    fields = {name: getattr(completion, name) for name in completion.__dataclass_fields__}
    fields["metadata"] = dict(completion.metadata)
    if not isinstance(completion.prompt, str):
        fields["prompt"] = [dict(message) for message in completion.prompt]
    return {name: value for name, value in fields.items() if value not in (None, {})}


def append_cache(path: Path, completions: Sequence[Completion]) -> None:
    """Append one JSON line per completion, and wait until the lines are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(to_dict(completion), ensure_ascii=False) for completion in completions]
    with path.open("a", encoding="utf-8") as file:
        # The line break comes first, because a killed run might have left half a line.
        file.writelines(f"\n{line}" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def read_cache(path: Path, key: str) -> dict[int, Completion]:
    """Return the completions in ``path`` that were made under ``key``, by question index.

    Lines that cannot be read (if a run was killed while writing) and lines of other runs are
    skipped: their completions are simply sampled again.
    """
    if not path.is_file():
        return {}
    found: dict[int, Completion] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                completion = Completion.from_dict(json.loads(line))
            except (ValueError, CompletionError):
                continue
            if completion.metadata.get("key") == key:
                found.setdefault(int(completion.metadata["question"]), completion)
    return found
