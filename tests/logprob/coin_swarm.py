"""Completions of the bundled policy sampled with a shared seed."""

import random
from dataclasses import replace
from functools import cache

from grpo_guard import Completion, SamplingSpec, SeedReplayVerifier
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin
from tests.logprob.bundled_policy import policy

COIN = PublicCoin("test-run")
SPEC = SamplingSpec("transformers", 1.0, 50, 0.95, max_new_tokens=64)
ROUND, NODE, SLOTS = 3, "alice", 4


@cache
def prompts(n: int = 6) -> tuple[str, ...]:
    rng, task = random.Random(0), WordProblems()
    return tuple(task.sample(rng).prompt for _ in range(n))


@cache
def drawn(
    node: str = NODE,
    *,
    round: int = ROUND,
    coin_name: str = "test-run",
    spec: SamplingSpec = SPEC,
    prefixes: tuple[tuple[int, ...], ...] | None = None,
) -> tuple[Completion, ...]:
    """Draw the node's completions, `SLOTS` per prompt."""
    model, tokenizer = policy()
    coin = PublicCoin(coin_name)
    places = [(prompt, slot) for prompt in prompts() for slot in range(SLOTS)]
    prompt_ids = [tuple(tokenizer.encode(prompt)) for prompt, _ in places]
    rows = generate_under_coin(
        model,
        prompt_ids,
        [coin.seed(round=round, node=node, slot=slot, prompt=prompt) for prompt, slot in places],
        spec,
        eos_ids=[tokenizer.eos_token_id],
        prefixes=prefixes,
    )
    return tuple(
        completion_of(prompt, ids, own, node, round, slot)
        for (prompt, slot), own, ids in zip(places, prompt_ids, rows, strict=True)
    )


def completion_of(prompt, ids, prompt_ids, node, round, slot) -> Completion:
    _, tokenizer = policy()
    return Completion(
        prompt,
        tokenizer.decode(ids, skip_special_tokens=True),
        prompt_ids=prompt_ids,
        completion_ids=ids,
        node=node,
        round=round,
        slot=slot,
    )


def with_ids(completion: Completion, ids: tuple[int, ...]) -> Completion:
    _, tokenizer = policy()
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return replace(completion, text=text, completion_ids=tuple(ids))


def verifier_of(round: int | None = ROUND, **options) -> SeedReplayVerifier:
    model, tokenizer = policy()
    options = {"sampling": SPEC, "coin": COIN, "slots": SLOTS} | options
    verifier = SeedReplayVerifier(model, tokenizer, **options)
    if round is not None:
        verifier.begin_round(round)
    return verifier


def kinds(verdicts) -> list[str]:
    """Return each verdict's first finding, or its outcome if it has no findings."""
    return [v.findings[0].kind if v.findings else v.outcome.value for v in verdicts]
