"""The body's forward pass: hidden states that predict the completions' tokens.

Padding stands at the right, where causal attention never looks back at it; without a mask,
attention takes its fast causal path.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.head import HeadError
from grpo_guard.logprob.kernels.product import filled_length

logger = logging.getLogger("grpo_guard")

# Eval mode is a property of the model, not of a scorer: with a lock each, one of two scorers would
# put the model back into training mode under the other, and dropout would reject honest work.
_model_locks: WeakKeyDictionary[nn.Module, threading.Lock] = WeakKeyDictionary()
_model_locks_lock = threading.Lock()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model for one thread alone, in eval mode and without gradients; modes are restored."""
    with _model_locks_lock:
        lock = _model_locks.setdefault(model, threading.Lock())
    with lock, torch.no_grad():
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """torch's threads of this one, at most ``count`` meanwhile; None leaves them alone."""
    before = torch.get_num_threads()
    if count is None or count >= before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Crowding:
    """Says once where threads that spin while they wait get little of their time.

    Beside processes that are busy such threads cost many times what they do
    (docs/results/beside.json): let them sleep, or have one.
    """

    SECONDS = 5.0
    """Shorter passes say nothing."""
    SHARE = 0.6

    def __init__(self) -> None:
        self._said = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """Whatever is computed meanwhile, on the threads that torch then has."""
        threads = torch.get_num_threads()
        started, cpu = time.monotonic(), time.process_time()
        yield
        seconds = time.monotonic() - started
        share = (time.process_time() - cpu) / max(seconds, 1e-9) / threads
        crowded = threads > 1 and seconds >= self.SECONDS and share < self.SHARE
        if self._said or not crowded or next(model.parameters()).device.type != "cpu":
            return
        self._said = True
        logger.warning(
            "scoring got %.0f %% of the time of its %d threads, as other processes are busy: set "
            "OMP_WAIT_POLICY=PASSIVE before torch is imported, or pass threads=1",
            100 * share,
            threads,
        )


def body_of(model: Any) -> Any:
    """The model below its output head."""
    body = getattr(model, model.base_model_prefix, None)
    if body is None or body is model:
        raise HeadError(f"{type(model).__name__}: expected a body below the output head")
    return body


def row_states(
    body: Any, sequences: Sequence[Encoded], device: torch.device, *, most: int = 0
) -> Tensor:
    """Each completion behind a copy of its prompt; [N, H], one completion after the other.

    Args:
        body: Of the model.
        sequences: The completions and their prompts.
        device: Of the model.
        most: Tokens up to which the padding may be longer where products gain by it.
    """
    rows = [s.prompt_ids + s.completion_ids[:-1] for s in sequences]
    states = body(input_ids=_padded(rows, body, device, most), use_cache=False).last_hidden_state
    return torch.cat(
        [states[i, len(s.prompt_ids) - 1 : len(rows[i])] for i, s in enumerate(sequences)]
    )


def forget_lengths(body: Any, device: torch.device) -> None:
    """Put "dynamic" rotary frequencies back: they stay as a long pass has left them.

    A pass below the original length resets them, one of exactly that length or more does not, so a
    long completion would change the numbers of whoever is scored after it.
    """
    body(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)


def shared_states(
    body: Any, sequences: Sequence[Encoded], device: torch.device, *, most: int = 0
) -> Tensor:
    """The same for completions of one prompt, which is run once and its cache shared.

    ``most`` counts the prompt too.

    Raises whatever a model without a cache that can be shared raises.
    """
    from transformers import DynamicCache

    prompt = torch.tensor([sequences[0].prompt_ids], device=device)
    cache = DynamicCache(config=body.config)
    output = body(input_ids=prompt, past_key_values=cache, use_cache=True)
    first: Tensor = output.last_hidden_state[0, -1:]  # predicts every completion's first token
    cache = output.past_key_values
    _widen(cache, len(sequences), device)
    rows = [s.completion_ids[:-1] for s in sequences]
    if not max(map(len, rows)):
        return first.expand(len(sequences), -1)
    ids = _padded(rows, body, device, most - prompt.shape[1])
    output = body(input_ids=ids, past_key_values=cache, use_cache=True)
    states = output.last_hidden_state
    return torch.cat(
        [part for i, row in enumerate(rows) for part in (first, states[i, : len(row)])]
    )


def _widen(cache: Any, rows: int, device: torch.device) -> None:
    """One row of a cache -> ``rows`` equal ones.

    `reorder_cache` does it for every kind of layer that transformers has, hybrid and sliding-window
    ones included. Plain layers are widened as views: their next update copies them anyway.
    """
    from transformers.cache_utils import DynamicLayer

    zeros = torch.zeros(rows, dtype=torch.long, device=device)
    for layer in cache.layers:
        if type(layer) is DynamicLayer and layer.is_initialized:
            layer.keys = layer.keys.expand(rows, -1, -1, -1)
            layer.values = layer.values.expand(rows, -1, -1, -1)
        else:
            layer.reorder_cache(zeros)


def _padded(rows: Sequence[Sequence[int]], body: Any, device: torch.device, most: int) -> Tensor:
    """Rows of one length, [N, L], and of no more than ``most`` if they are filled up."""
    longest = filled_length(body, len(rows), max(map(len, rows)), most)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids.to(device)
