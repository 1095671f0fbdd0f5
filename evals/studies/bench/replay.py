"""The cost of a public coin: replaying it in the scoring pass, and drawing under it."""

from collections.abc import Callable
from dataclasses import replace

import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.sample import generation_config
from grpo_guard.evals.studies.bench.end_to_end import Loaded, generate
from grpo_guard.evals.studies.bench.head import HeadCase, compiled_from_now_on
from grpo_guard.evals.studies.bench.measure import Clock, Timing, interleaved
from grpo_guard.logprob.kernels.head_stats import head_stats
from grpo_guard.logprob.kernels.scores import Head
from grpo_guard.logprob.noise import signed
from grpo_guard.logprob.replay.generate import generate_under_coin, only_these_settings
from grpo_guard.logprob.replay.margins import Replay, RowReplay
from grpo_guard.logprob.scorers.transformers import TransformersScorer

# The sampler used in the measurements, and TRL's default.
SAMPLERS = (
    (SamplingSpec("transformers", 1.0, 50, 0.95), "top-k 50, top-p 0.95"),
    (SamplingSpec("transformers", 1.0, 0, 1.0), "whole vocabulary"),
)
NEW_TOKENS, ROWS, PASS_TOKENS = 64, 16, 128
NEVER = 10**9
PASS = "seed replay in the whole scoring pass"
SCORING = "seed replay in the head's pass"
DRAWING = f"seed replay: drawing {ROWS} completions of {NEW_TOKENS} tokens"


def scoring(case: HeadCase, device: str, spec: SamplingSpec, *, rounds: int) -> list[Timing]:
    """Time the statistics of a batch with and without replaying a coin: what a coin costs. On a GPU
    the statistics alone take the Triton kernels, which cannot replay."""
    hidden, weight, _ = case.tensors(device)
    head = Head(weight)
    # Honest targets, because with random ones nearly every row would need its second pass.
    logits = hidden.float() @ weight.float().T
    targets = torch.multinomial(logits.softmax(-1), 1)[:, 0]
    del logits
    replay = RowReplay(
        Replay(),
        torch.full((case.rows,), signed(2**64 - 3), device=device),
        torch.arange(case.rows, device=device),
    )

    def run(replay: RowReplay | None) -> Callable[[], object]:
        return lambda: head_stats(hidden, head, targets, spec, replay=replay)

    clock: Clock = "cuda" if device == "cuda" else "cpu"
    compiled_from_now_on(case.vocab)
    with torch.no_grad():
        return interleaved(
            {"statistics alone": run(None), "grpo-guard, with the coin's replay": run(replay)},
            rounds=rounds,
            clock=clock,
        )


def scoring_pass(loaded: Loaded, spec: SamplingSpec, *, rounds: int, clock: Clock) -> list[Timing]:
    """Time the full scoring of two groups, body and head, with and without replay; wall time."""
    torch.manual_seed(0)
    drawn = generate(loaded, replace(spec, max_new_tokens=PASS_TOKENS))
    sequences = [replace(sequence, seed=i) for i, sequence in enumerate(drawn)]
    scorer = TransformersScorer(loaded.model)
    compiled_from_now_on(scorer.vocab_size)
    return interleaved(
        {
            "scoring": lambda: scorer.score(sequences, spec),
            "grpo-guard, with the coin's replay": lambda: scorer.score(
                sequences, spec, replay=Replay()
            ),
        },
        rounds=rounds,
        clock=clock,
    )


def drawing(loaded: Loaded, spec: SamplingSpec, *, rounds: int) -> list[Timing]:
    """Time plain sampling against sampling under the coin; wall time."""
    prompts = [loaded.prompts[0][:64]] * ROWS
    ids = torch.tensor(prompts, device=loaded.model.device)
    spec = replace(spec, max_new_tokens=NEW_TOKENS)

    def plain() -> object:
        with torch.inference_mode(), only_these_settings(loaded.model):
            return loaded.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=generation_config(spec, eos=(), pad=0),
            )

    def coin() -> object:
        seeds = list(range(ROWS))
        # An id that is never drawn serves as the EOS, so that all completions have full length.
        return generate_under_coin(loaded.model, prompts, seeds, spec, eos_ids=[NEVER])

    return interleaved(
        {"plain sampling": plain, "grpo-guard, under the coin": coin}, rounds=rounds, clock="wall"
    )
