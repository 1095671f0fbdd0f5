"""Negative controls: completions that no honest node would send. Each must be rejected.

A checker that accepts everything also accepts all honest work, so a false-positive rate on its own
means nothing. One control is different: in text sampled at temperature 2.0 with the declared top-k,
every token still lies inside the support, and the text is improbable only as a whole.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from grpo_guard.core.completion import Completion
from grpo_guard.evals.detect.poison import with_ids, with_text
from grpo_guard.evals.tasks.word_problems import generate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HUGE_TOKENS: Final = 200_000
HOT_TEMPERATURE: Final = 2.0
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[ ]")


def random_tokens(
    honest: Sequence[Completion], tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> list[Completion]:
    """Replace each completion with as many tokens, drawn uniformly from the vocabulary."""
    rng, vocabulary = random.Random(f"{seed}:random"), _ordinary_ids(tokenizer)
    return [
        with_ids(c, rng.choices(vocabulary, k=len(c.completion_ids or ())), tokenizer)
        for c in honest
        if c.completion_ids
    ]


def swapped_token(
    honest: Sequence[Completion], tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> list[Completion]:
    """Replace one token per completion, never EOS, with a token drawn uniformly."""
    rng, vocabulary = random.Random(f"{seed}:swapped"), _ordinary_ids(tokenizer)
    swapped = []
    for completion in honest:
        ids = list(completion.completion_ids or ())
        places = [i for i, token in enumerate(ids) if token != tokenizer.eos_token_id]
        if places:
            at = rng.choice(places)
            ids[at] = rng.choice([i for i in rng.sample(vocabulary, 2) if i != ids[at]])
            changed = with_ids(completion, ids, tokenizer)
            swapped.append(replace(changed, metadata={**changed.metadata, "swapped": at}))
    return swapped


def shuffled_lines(
    honest: Sequence[Completion], tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> list[Completion]:
    """Shuffle each completion's lines, or its sentences if it has only one line.

    A single sentence cannot be shuffled, so such completions are left out.
    """
    rng, shuffled = random.Random(f"{seed}:shuffled"), []
    for completion in honest:
        joint = "\n"
        parts = [line for line in completion.text.split("\n") if line.strip()]
        if len(parts) < 2:
            joint, parts = " ", _SENTENCE_END.split(completion.text)
        order = list(parts)
        for _ in range(20):
            rng.shuffle(order)
            if order != parts:
                shuffled.append(with_text(completion, joint.join(order), tokenizer))
                break
    return shuffled


def empty(honest: Sequence[Completion], tokenizer: PreTrainedTokenizerBase) -> list[Completion]:
    """Return two empty completions: one without any token, and one with nothing but EOS."""
    return [
        replace(c, text="", completion_ids=ids, sampler_logprobs=None)
        for c, ids in zip(honest, ((), (int(tokenizer.eos_token_id),)), strict=False)
    ]


def huge(honest: Sequence[Completion], tokenizer: PreTrainedTokenizerBase) -> list[Completion]:
    """Return a completion repeated up to 200,000 tokens, once with ids and once as text only."""
    made = []
    for completion in islice((c for c in honest if c.completion_ids), 1):
        body = [i for i in completion.completion_ids or () if i != tokenizer.eos_token_id]
        ids = (body * (HUGE_TOKENS // len(body) + 1))[:HUGE_TOKENS] if body else []
        long = with_ids(completion, ids, tokenizer)
        made += [long, replace(long, completion_ids=None)]
    return made


def bundled_text(
    honest: Sequence[Completion], tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> list[Completion]:
    """Return solutions of generated word problems as answers to other prompts.

    They serve as another model's text if no file with such text is available. Solutions are
    concatenated until the answer is about as long as the honest one.
    """
    solutions = (p.solution for p in generate(f"{seed}:other", 20 * len(honest) + 20))
    made = []
    for completion in honest:
        text = next(solutions)
        for more in islice(solutions, 15):
            if len(text) >= len(completion.text):
                break
            text += "\n" + more
        made.append(with_text(completion, text, tokenizer))
    return made


def _ordinary_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    special = set(tokenizer.all_special_ids)
    return sorted(i for i in tokenizer.get_vocab().values() if i not in special)
