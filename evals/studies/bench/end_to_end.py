"""Compares scoring whole completions with generating them.

Uses real weights, groups of completions to one long prompt, all cores, and wall time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.sample import generation_config
from grpo_guard.evals.studies.bench.head import compiled_from_now_on
from grpo_guard.evals.studies.bench.measure import Clock, Timing, interleaved
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.transformers import TransformersScorer

SPEC = SamplingSpec("transformers", 1.0, 20, 1.0, max_new_tokens=128)
PROMPT, GROUP, GROUPS = 256, 8, 2
LONG = replace(SPEC, max_new_tokens=384)
QUESTION = "A farmer has 17 cows and buys 5 more, then sells 8 of them at the market. "


def name_of(spec: SamplingSpec) -> str:
    """Return the name of the comparison for a sampler."""
    new = spec.max_new_tokens
    return f"end to end, {GROUPS} groups of {GROUP}, {PROMPT}-token prompt, {new} new"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and prompts for it as token ids, each `PROMPT` tokens long."""

    model: Any
    prompts: tuple[tuple[int, ...], ...]


def load(model: Path, device: str) -> Loaded:
    """Load the model's weights and build the prompts."""
    from grpo_guard.logprob.scorers.load import load_policy

    policy, tokenizer = load_policy(str(model), device=device)
    prompts = []
    for i in range(GROUPS):
        ids = tokenizer.encode(f"Problem {i + 1}. " + QUESTION * 40)
        prompts.append(tuple(ids[:PROMPT]))
    return Loaded(policy, tuple(prompts))


def generate(loaded: Loaded, spec: SamplingSpec = SPEC) -> list[Encoded]:
    """Sample every group with transformers, without EOS, so that all have full length."""
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


def end_to_end(loaded: Loaded, spec: SamplingSpec, *, rounds: int, clock: Clock) -> list[Timing]:
    """Time the scoring of samples drawn under ``spec``.

    Under samplers other than `SPEC`, a shared prompt is compared only with generating.
    """
    import torch

    torch.manual_seed(0)
    sequences = generate(loaded, spec)
    shared = TransformersScorer(loaded.model)
    rows = TransformersScorer(loaded.model, shared_prompts=False)
    variants: dict[str, Callable[[], object]] = {
        "grpo-guard, prompt shared": lambda: shared.score(sequences, spec)
    }
    if spec is SPEC:
        variants["grpo-guard, prompt per completion"] = lambda: rows.score(sequences, spec)
        variants["transformers, full logits"] = lambda: full_logits(loaded.model, sequences)
    variants["generating them, transformers"] = lambda: generate(loaded, spec)
    # The state after a run's first rounds: head sums compiled, shared prompts checked.
    compiled_from_now_on(shared.vocab_size)
    for scorer in (shared, rows) if spec is SPEC else (shared,):
        scorer.score(sequences, SPEC)
    # A round takes a minute on a CPU; the effect of a warm-up is small in comparison.
    return interleaved(variants, rounds=rounds, clock=clock, warm_up=clock == "cuda")


def full_logits(model: Any, sequences: Sequence[Encoded]) -> list[Any]:
    """Score in the obvious way: batches of rows, then log_softmax over all logits."""
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
