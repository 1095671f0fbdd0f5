"""Honest completions of a detection run: sampled for a task, or given by the user."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from grpo_guard.cli.rows import completions_of
from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.config import DetectConfig, Loaded, NotEnoughError
from grpo_guard.evals.detect.sample import BATCHES_PER_BLOCK, Prompt, SampleConfig, sample_honest
from grpo_guard.evals.progress import Say
from grpo_guard.evals.tasks import gsm8k, python_maths, word_problems
from grpo_guard.evals.tasks.registry import GSM8K, WORD_PROBLEMS

# Some completions are too short to count, so this many times the required number of questions are
# asked.
SPARE: Final = 4


def prompts_of(config: DetectConfig, *, chat: bool) -> list[Prompt]:
    """Return the task's prompts in the order they are used, as chats or plain text.

    Generated word problems are plain text even with ``chat``.
    """
    # Whole blocks, so that requesting more later does not change the earlier batches.
    block = config.batch_size * BATCHES_PER_BLOCK
    count = -(-config.n * SPARE // block) * block
    if config.task == GSM8K:
        questions = gsm8k.subset(gsm8k.load(config.data), count, config.seed)
        ask = gsm8k.messages if chat else word_problems.prompt_of
        return [Prompt(q.index, ask(q.question), q.answer) for q in questions]
    if config.task == WORD_PROBLEMS:
        problems = word_problems.generate(config.seed, count)
        return [Prompt(i, p.prompt, p.answer) for i, p in enumerate(problems)]
    rng = random.Random(config.seed)
    problems = python_maths.read(config.data) if config.data else []
    rng.shuffle(problems)
    problems = problems[:count] or [python_maths.generated(rng) for _ in range(count)]
    return [
        Prompt(i, python_maths.messages(p.question) if chat else p.prompt, p.answer)
        for i, p in enumerate(problems)
    ]


def given_completions(config: DetectConfig) -> list[Completion]:
    """Read the completions in the file ``config.honest``; without a model, ids are dropped."""
    assert config.honest is not None
    found = completions_of(config.honest, config.mapped)[: config.n]
    if not found:
        raise NotEnoughError(f"{config.honest}: expected honest completions, got none")
    if config.model is None:
        found = [
            replace(one, prompt_ids=None, completion_ids=None, sampler_logprobs=None)
            for one in found
        ]
    return found


def honest_completions(
    loaded: Loaded, config: DetectConfig, cache: Path | None, say: Say
) -> list[Completion]:
    """Sample ``config.n`` honest completions, or read them from ``cache``.

    Raises:
        NotEnoughError: too few completions have ``config.min_tokens`` tokens.
    """
    kept = sampled(loaded, config, config.spec, config.n, cache, partial(say, "sample honest"))
    if len(kept) < config.n:
        raise NotEnoughError(
            f"expected {config.n} completions of {config.min_tokens}+ tokens, got {len(kept)}; "
            "lower --min-tokens or give more questions"
        )
    return kept


def sampled(
    loaded: Loaded,
    config: DetectConfig,
    spec: SamplingSpec,
    count: int,
    cache: Path | None,
    progress: Say,
) -> list[Completion]:
    """Sample at most ``count`` completions under ``spec``, or read them from ``cache``."""
    sampling = SampleConfig(
        config.model or "", spec, config.seed, config.batch_size, config.dtype, config.min_tokens
    )
    return sample_honest(
        loaded.model,
        loaded.tokenizer,
        prompts_of(config, chat=bool(loaded.tokenizer.chat_template)),
        sampling,
        wanted=count,
        cache=cache,
        progress=progress,
    )
