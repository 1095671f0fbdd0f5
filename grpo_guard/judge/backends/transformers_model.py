"""A causal language model in this process, from messages to replies. Imports torch."""

import inspect
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Reply, Request
from grpo_guard.judge.backends.chat_ids import ChatEncoder
from grpo_guard.judge.errors import BackendError
from grpo_guard.logprob.scorers.forward import left_padded

OVERLONG = "overlong"
_ANSWERS = ("yes", "no")
# Prompts in the same forward pass can differ in length by this factor plus this many tokens.
# Otherwise one long completion would make its whole batch as long, and as slow, as itself.
_SPREAD = (1.5, 64)


class LoadedModel:
    """Weights, tokenizer, and the maximum prompt length that `TransformersBackend` allows."""

    def __init__(self, model: Any, tokenizer: Any, max_prompt_tokens: int | None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = ChatEncoder(self._tokenizer)
        self._window = _window(self._model, self._tokenizer)
        self._limit = max_prompt_tokens
        self._answers = _answer_ids(self._tokenizer, int(self._model.config.vocab_size))
        self._keeps_last = "logits_to_keep" in inspect.signature(self._model.forward).parameters

    @torch.inference_mode()
    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply per request, in order."""
        ids = [self._encoder.encode(request.messages) for request in requests]
        replies: dict[int, Reply] = {}
        fitting = []
        for place, (tokens, request) in enumerate(zip(ids, requests, strict=True)):
            room = self._window - request.max_tokens
            if len(tokens) > (room if self._limit is None else min(self._limit, room)):
                replies[place] = Reply("", finish_reason=OVERLONG, tokens_in=len(tokens))
            else:
                fitting.append(place)
        for places in _by_length(fitting, ids):
            looked_up = [p for p in places if requests[p].top_logprobs > 0]
            if looked_up:
                found = self._first_tokens([ids[p] for p in looked_up])
                for place, row in zip(looked_up, found, strict=True):
                    replies[place] = self._first_token_reply(row, requests[place], len(ids[place]))
            for place in places:
                request = requests[place]
                if request.max_tokens > 1 or place not in replies:
                    first = replies[place].first_token if place in replies else None
                    replies[place] = self._generated_reply(ids[place], request, first)
        return [replies[place] for place in range(len(requests))]

    def _first_tokens(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities of the token after each prompt, float32, shape [B, V]."""
        ids, mask = self._padded(prompts)
        # Padding must not shift positions: a prompt has to get the same answer in any batch.
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        keep = {"logits_to_keep": 1} if self._keeps_last else {}
        out = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **keep
        )
        logprobs = torch.log_softmax(out.logits[:, -1].float(), dim=-1)
        if bool(logprobs.isnan().any()):
            # Broken weights or an overflowing number format; no completion can cause this.
            raise BackendError("the model's logits are not numbers", cause=Cause.FAULT, retry=False)
        return logprobs.cpu()

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        pad = self._tokenizer.pad_token_id
        return left_padded(prompts, 0 if pad is None else int(pad), self._model.device)

    def _first_token_reply(self, logprobs: Tensor, request: Request, length: int) -> Reply:
        """The most likely tokens plus every token that reads yes or no, without duplicates."""
        top = logprobs.topk(min(request.top_logprobs, len(logprobs))).indices.tolist()
        tokens = dict.fromkeys([*top, *(i for i in self._answers if i < len(logprobs))])
        candidates = [(self._text([token]), float(logprobs[token])) for token in tokens]
        return Reply(
            text=candidates[0][0],
            first_token=tuple(c for c in candidates if c[1] > -math.inf),
            finish_reason="length",
            tokens_in=length,
            tokens_out=1,
        )

    def _generated_reply(
        self, prompt: Sequence[int], request: Request, first: tuple[tuple[str, float], ...] | None
    ) -> Reply:
        ids, mask = self._padded([prompt])
        pad = self._tokenizer.pad_token_id
        out = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=request.max_tokens,
            pad_token_id=self._tokenizer.eos_token_id if pad is None else pad,
            do_sample=False,
        )
        new = out[0, len(prompt) :].tolist()
        stops = self._model.generation_config.eos_token_id
        stopped = bool(new) and new[-1] in ([stops] if isinstance(stops, int) else stops or ())
        text = self._text(new[:-1] if stopped else new)
        reason = "stop" if stopped else "length"
        return Reply(text, first, reason, tokens_in=len(prompt), tokens_out=len(new))

    def _text(self, ids: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


def _by_length(places: Sequence[int], ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Group indices by similar prompt length."""
    factor, least = _SPREAD
    group: list[int] = []
    for place in sorted(places, key=lambda p: len(ids[p])):
        if group and len(ids[place]) > factor * len(ids[group[0]]) + least:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _answer_ids(tokenizer: Any, vocabulary: int) -> list[int]:
    """Ids of all tokens that read yes or no, in any case and with any spaces."""
    found = []
    for token, number in tokenizer.get_vocab().items():
        if token.strip(" \t\n▁ĠĊ").lower() in _ANSWERS and number < vocabulary:
            found.append(int(number))
    return sorted(found)


def _window(model: Any, tokenizer: Any) -> int:
    """Size of the model's context in tokens; 4,096 if neither config nor tokenizer states it."""
    config = model.config.get_text_config()
    stated = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    # Tokenizers without a limit report 10**30.
    known = [int(n) for n in stated if isinstance(n, int) and 0 < n < 10**9]
    return min(known, default=4096)
