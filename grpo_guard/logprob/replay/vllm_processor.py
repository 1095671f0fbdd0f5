"""Sampling under a public coin with vLLM's V1 model runner, for honest nodes.

    llm = LLM(model, logits_processors=["grpo_guard.logprob.replay.vllm_processor:CoinProcessor"])
    llm.generate(prompts, [coin_params(spec, seed) for seed in seeds])

Over HTTP, start the server with ``--logits-processors`` and the name above, and send
``"vllm_xargs": {"grpo_guard_seed": SEED}``. Nodes on stock vLLM with Model Runner V2 need none of
this: they pass `noise.signed(seed)` as the request's own seed, and the verifier replays with
``family="vllm"``.

The processor draws the token itself and masks all others, so later stages of vLLM's sampler do not
matter. This module imports vLLM, and only vLLM imports this module.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels.scores import penalised
from grpo_guard.logprob.noise import signed
from grpo_guard.logprob.replay.draw import draw

SEED_ARGUMENT = "grpo_guard_seed"
# Number of completion tokens at the end of a request's prompt: earlier turns plus their answers.
START_ARGUMENT = "grpo_guard_start"
# Parameters that change scores or completions in ways the verifier does not know about.
UNDECLARED = (
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "stop",
    "ignore_eos",
    "truncate_prompt_tokens",
)


def coin_params(spec: SamplingSpec, seed: int, start: int = 0) -> SamplingParams:
    """Build the parameters for one request, with a seed from `PublicCoin.seed`.

    For later turns, ``start`` is the number of completion tokens, drawn or given, at the end of the
    request's prompt. Raises ValueError for other engines, or if ``max_new_tokens`` is not declared.
    """
    if spec.engine != "vllm" or spec.max_new_tokens is None:
        raise ValueError(f"spec: expected engine 'vllm' and max_new_tokens, got {spec}")
    return SamplingParams(
        temperature=spec.temperature,
        top_k=spec.top_k,
        top_p=spec.top_p,
        min_p=spec.min_p,
        repetition_penalty=spec.repetition_penalty,
        max_tokens=spec.max_new_tokens - start,
        stop_token_ids=list(spec.eos_token_ids) or None,
        extra_args={SEED_ARGUMENT: seed, START_ARGUMENT: start},
    )


@dataclass(slots=True)
class _Request:
    """A request under the coin."""

    spec: SamplingSpec
    seed: int
    prompt: list[int]
    output: list[int]  # vLLM's own list, which grows with every token
    start: int = 0
    seen: Tensor | None = field(default=None)


class CoinProcessor(LogitsProcessor):  # type: ignore[misc]
    """Draws under the coin for requests that carry a seed; leaves other requests unchanged."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse parameters that would make an honest completion fail the replay, by ValueError."""
        seed = (sampling_params.extra_args or {}).get(SEED_ARGUMENT)
        if seed is None:
            return
        digits = str(seed)
        written = digits.isascii() and digits.isdecimal() and len(digits) <= 20
        if isinstance(seed, bool) or not (written and int(digits) < 2**64):
            raise ValueError(f"{SEED_ARGUMENT}: expected 0 <= seed < 2**64, got {seed!r:.80}")
        start = str((sampling_params.extra_args or {}).get(START_ARGUMENT, 0))
        if not (start.isascii() and start.isdecimal() and len(start) <= 10):
            raise ValueError(f"{START_ARGUMENT}: expected a number of tokens, got {start:.80}")
        if sampling_params.n != 1:
            raise ValueError(f"n: expected 1 with a seed, got {sampling_params.n}")
        if sampling_params.temperature <= 0:
            raise ValueError("temperature: expected a number > 0 (greedy decoding is top_k=1)")
        for name in UNDECLARED:
            if value := getattr(sampling_params, name, None):
                raise ValueError(f"{name}: expected it to be off with a seed, got {value!r}")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.device = device
        self.requests: dict[int, _Request] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keep track of requests as they are removed from, added to and moved within the batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.requests.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            self.requests.pop(index, None)
            if (params.extra_args or {}).get(SEED_ARGUMENT) is not None:
                self.requests[index] = _request(params, prompt, output)
        for a, b, direction in batch_update.moved:
            moved, other = self.requests.pop(a, None), self.requests.pop(b, None)
            if moved is not None:
                self.requests[b] = moved
            if direction == MoveDirectionality.SWAP and other is not None:
                self.requests[a] = other

    def apply(self, logits: Tensor) -> Tensor:
        """Mask all tokens except the drawn one, in place, [B, V]."""
        alike: dict[SamplingSpec, list[int]] = defaultdict(list)
        for index, request in self.requests.items():
            alike[request.spec].append(index)
        for spec, indices in alike.items():
            requests = [self.requests[i] for i in indices]
            rows = torch.tensor(indices, device=logits.device)
            z = logits[rows].float()
            for row, request in enumerate(requests):
                _penalise(z[row], request)
            drawn = draw(
                z / spec.temperature,
                torch.tensor([signed(r.seed) for r in requests], device=logits.device),
                torch.tensor([r.start + len(r.output) for r in requests], device=logits.device),
                spec,
            )
            logits[rows] = -torch.inf
            logits[rows, drawn] = 0.0
        return logits


def _request(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Request:
    spec = SamplingSpec(
        engine="vllm",
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
    )
    extra = params.extra_args or {}
    seed, start = int(extra[SEED_ARGUMENT]), int(extra.get(START_ARGUMENT, 0))
    return _Request(spec, seed, prompt or [], output, start)


def _penalise(z: Tensor, request: _Request) -> None:
    """Apply the repetition penalty over prompt and completion, in place, [V]."""
    penalty = request.spec.repetition_penalty
    if penalty == 1.0:
        return
    if request.seen is None:
        request.seen = torch.zeros_like(z, dtype=torch.bool)
        request.seen[torch.tensor(request.prompt, device=z.device)] = True
    seen = request.seen
    if -1 in request.output:
        raise RuntimeError(
            "repetition_penalty: expected the tokens drawn so far, got placeholders; turn off "
            "asynchronous scheduling"
        )
    if request.output:
        seen[torch.tensor(request.output, device=z.device)] = True
    z[seen] = penalised(z[seen], penalty)
