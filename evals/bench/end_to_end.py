"""Scoring whole completions against generating them, and against vLLM's prompt_logprobs.

Real weights, groups of completions to one long prompt, all cores, wall time.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from json import dumps, loads
from pathlib import Path
from typing import Any

from grpo_guard.evals.bench.head import compiled_from_now_on
from grpo_guard.evals.bench.measure import Clock, Timing, interleaved
from grpo_guard.evals.bench.vllm_server import vllm_server
from grpo_guard.evals.sample import generation_config
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.sampling import SamplingSpec

SPEC = SamplingSpec("transformers", 1.0, 20, 1.0, max_new_tokens=128)
PROMPT, GROUP, GROUPS = 256, 8, 2
LONG = replace(SPEC, max_new_tokens=384)
QUESTION = "A farmer has 17 cows and buys 5 more, then sells 8 of them at the market. "


def name_of(spec: SamplingSpec) -> str:
    """Of the comparison."""
    new = spec.max_new_tokens
    return f"end to end, {GROUPS} groups of {GROUP}, {PROMPT}-token prompt, {new} new"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and its prompts as ids, each of `PROMPT` tokens."""

    model: Any
    prompts: tuple[tuple[int, ...], ...]


def load(model: Path, device: str) -> Loaded:
    """Weights and prompts.

    Raises:
        ValueError: no model there.
    """
    from grpo_guard.logprob.scorers.load import load_policy

    policy, tokenizer = load_policy(str(model), device=device)
    prompts = []
    for i in range(GROUPS):
        ids = tokenizer.encode(f"Problem {i + 1}. " + QUESTION * 40)
        prompts.append(tuple(ids[:PROMPT]))
    return Loaded(policy, tuple(prompts))


def generate(loaded: Loaded, spec: SamplingSpec = SPEC) -> list[Encoded]:
    """Sample every group with transformers; no EOS, so that all completions have full length."""
    import torch

    sequences = []
    for prompt in loaded.prompts:
        ids = torch.tensor([prompt] * GROUP, device=loaded.model.device)
        config = generation_config(spec, eos=(), pad=0)
        with torch.inference_mode():
            output = loaded.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
            )
        sequences += [Encoded(prompt, tuple(row[PROMPT:]), False) for row in output.tolist()]
    return sequences


def end_to_end(
    model: Path, device: str, *, rounds: int, vllm_python: Path | None
) -> tuple[list[Timing], dict[str, float]]:
    """(timings, largest differences between the ways); vLLM only where its Python is given."""
    import torch

    loaded = load(model, device)
    torch.manual_seed(0)
    sequences = generate(loaded)
    shared = TransformersScorer(loaded.model)
    rows = TransformersScorer(loaded.model, shared_prompts=False)
    variants: dict[str, Callable[[], object]] = {
        "grpo-guard, prompt shared": lambda: shared.score(sequences, SPEC),
        "grpo-guard, prompt per completion": lambda: rows.score(sequences, SPEC),
        "transformers, full logits": lambda: full_logits(loaded.model, sequences),
        "generating them, transformers": lambda: generate(loaded),
    }
    clock: Clock = "cuda" if device == "cuda" else "wall"
    with ExitStack() as stack:
        differences: dict[str, float] = {}
        if vllm_python is not None:
            url, key = stack.enter_context(
                vllm_server(vllm_python, model, max_model_len=1024, max_logprobs=20)
            )
            variants["vLLM server, prompt_logprobs=20"] = lambda: vllm_scores(url, key, sequences)
            ours = [t.logprob for t in shared.score(sequences, SPEC)]
            theirs = vllm_scores(url, key, sequences)
            differences["largest log-prob difference to vLLM"] = max(
                float(abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)
            )
        for scorer in (shared, rows):
            _settle(scorer, sequences)
        # A round takes a minute on a CPU; what a warm-up would change is small beside it.
        timings = interleaved(variants, rounds=rounds, clock=clock, warm_up=clock == "cuda")
        return timings, differences


def long_completions(model: Path, device: str, *, rounds: int) -> list[Timing]:
    """Scoring against generating where completions are longer than their prompt."""
    import torch

    loaded = load(model, device)
    torch.manual_seed(0)
    sequences = generate(loaded, LONG)
    shared = TransformersScorer(loaded.model)
    _settle(shared, sequences)
    return interleaved(
        {
            "grpo-guard, prompt shared": lambda: shared.score(sequences, LONG),
            "generating them, transformers": lambda: generate(loaded, LONG),
        },
        rounds=rounds,
        clock="cuda" if device == "cuda" else "wall",
        warm_up=device == "cuda",
    )


def _settle(scorer: TransformersScorer, sequences: Sequence[Encoded]) -> None:
    """As after a run's first rounds: sums of the head compiled, shared prompts checked."""
    compiled_from_now_on(scorer.vocab_size, scorer.device)
    scorer.score(sequences, SPEC)


def full_logits(model: Any, sequences: Sequence[Encoded]) -> list[Any]:
    """What one writes first: a batch of rows through the model, log_softmax over everything."""
    import torch

    results = []
    for start in range(0, len(sequences), GROUP):
        part = sequences[start : start + GROUP]
        ids = torch.tensor([s.prompt_ids + s.completion_ids for s in part], device=model.device)
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[:, PROMPT - 1 : -1]
            log_p = torch.log_softmax(logits.float() / SPEC.temperature, -1)
            results.append(log_p.gather(-1, ids[:, PROMPT:, None])[..., 0])
    return results


def vllm_scores(url: str, key: str, sequences: Sequence[Encoded]) -> list[Any]:
    """Log-probs of the completions' tokens; the requests go out together."""
    import numpy as np

    def one(sequence: Encoded) -> Any:
        body = {
            "model": "policy",
            "prompt": list(sequence.prompt_ids + sequence.completion_ids),
            "max_tokens": 1,
            "prompt_logprobs": 20,
        }
        request = urllib.request.Request(
            f"{url}/completions",
            dumps(body).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=600) as answer:
            choice = loads(answer.read())["choices"][0]
        entries = choice["prompt_logprobs"][len(sequence.prompt_ids) :]
        return np.array(
            [e[str(t)]["logprob"] for e, t in zip(entries, sequence.completion_ids, strict=True)]
        )

    with ThreadPoolExecutor(GROUP) as pool:
        return list(pool.map(one, sequences))
