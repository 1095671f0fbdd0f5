"""The bundled policy and its honest completions, created once per session."""

import random
from functools import cache

import torch

from grpo_guard import Completion, SamplingSpec
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.tasks.word_problems import WordProblems

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=64)
policy = cache(load_bundled)


@cache
def honest(
    n: int = 64, seed: int = 0, temperature: float = 1.0, top_k: int = 50
) -> tuple[Completion, ...]:
    """Completions as an honest node sends them, with ids that end in EOS if they stopped."""
    model, tokenizer = policy()
    rng = random.Random(seed)
    task = WordProblems()
    prompts = [task.sample(rng).prompt for _ in range(n // 4)]
    sampled = sample(
        model,
        tokenizer,
        prompts,
        4,
        generator=torch.Generator().manual_seed(seed),
        temperature=temperature,
        top_k=top_k,
        max_new_tokens=64,
    )
    return tuple(
        Completion(prompts[s.prompt], s.text, prompt_ids=s.prompt_ids, completion_ids=s.ids)
        for s in sampled
    )


def with_text(completion: Completion, text: str) -> Completion:
    """Replace the text as an attacker would: properly tokenised and terminated."""
    _, tokenizer = policy()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Completion(completion.prompt, text, completion_ids=[*ids, tokenizer.eos_token_id])
