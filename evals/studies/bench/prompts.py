"""Times a group's prompt run once against run for every completion: body, random weights."""

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_guard.evals.studies.bench.measure import Clock, Timing, interleaved
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.product import faster_linear
from grpo_guard.logprob.scorers.forward import body_of, row_states, shared_states

PROMPT, GROUP, COMPLETION = 512, 8, 128
NAME = f"body, shared prompt, P={PROMPT} G={GROUP} R={COMPLETION}"


def group_of_one_prompt(device: str) -> tuple[Any, list[Encoded]]:
    """Build the body of an 8-layer Qwen2 of width 512, and a group of random completions."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    body = body_of(Qwen2ForCausalLM(config).eval().to(device))
    prompt = tuple(torch.randint(0, 32_000, (PROMPT,)).tolist())
    group = [
        Encoded(prompt, tuple(torch.randint(0, 32_000, (COMPLETION,)).tolist()), False)
        for _ in range(GROUP)
    ]
    return body, group


def shared_prompt(device: str, *, rounds: int) -> list[Timing]:
    """Time both ways; the ratio for running the prompt per completion is the gain."""
    body, group = group_of_one_prompt(device)
    where = torch.device(device)
    clock: Clock = "cuda" if device == "cuda" else "cpu"
    with torch.no_grad(), faster_linear(body):
        return interleaved(
            {
                "prompt run once (ours)": lambda: shared_states(body, group, where),
                "prompt run per completion": lambda: row_states(body, group, where),
            },
            rounds=rounds,
            clock=clock,
        )
