"""The forward pass of a model's body, giving the hidden states that predict completion tokens.

Padding is on the right, where no token attends to it under causal attention, so no mask is needed
and attention takes its fast causal path.
"""

import inspect
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from grpo_guard.core.forks import Lock
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.scores import HeadError
from grpo_guard.logprob.scorers.memory import ran_out_of_memory

logger = logging.getLogger("grpo_guard")

# Eval mode belongs to the model, not the scorer: with one lock per scorer, one scorer could put the
# model back into training mode while another is using it, and dropout would get honest work
# rejected.
_model_locks: WeakKeyDictionary[nn.Module, Lock] = WeakKeyDictionary()
_model_locks_lock = Lock()
# Tolerated relative difference in hidden states: (mean over tokens, maximum over tokens). If an
# architecture's cache cannot be shared, the difference is far larger; bf16 rounds at 4e-3.
TOLERANCES = (1e-4, 1e-2)
LOW_PRECISION_TOLERANCES = (3e-2, 0.3)
CHECKED_ROWS = 2


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Lock the model for this thread in eval mode without gradients; restore its modes on exit."""
    with _model_locks_lock:
        lock = _model_locks.setdefault(model, Lock())
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
    """Limit torch to ``count`` CPU threads inside the context; None changes nothing."""
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
    """Warns once if scoring threads that spin while waiting get little CPU time.

    Alongside busy processes, spinning threads make scoring many times slower
    (docs/results/beside.json); the remedy is to let them sleep or use a single thread. Passes
    shorter than ``SECONDS`` are not judged.
    """

    SECONDS, SHARE = 5.0, 0.6

    def __init__(self) -> None:
        self._warned = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        """Time a computation that runs on torch's current number of threads."""
        threads = torch.get_num_threads()
        started, cpu = time.monotonic(), time.process_time()
        yield
        seconds = time.monotonic() - started
        share = (time.process_time() - cpu) / max(seconds, 1e-9) / threads
        crowded = threads > 1 and seconds >= self.SECONDS and share < self.SHARE
        if self._warned or not crowded or next(model.parameters()).device.type != "cpu":
            return
        self._warned = True
        logger.warning(
            "scoring got %.0f %% of the time of its %d threads because other processes are busy: "
            "set OMP_WAIT_POLICY=PASSIVE before torch is imported, or pass threads=1",
            100 * share,
            threads,
        )


def body_of(model: Any) -> Any:
    """Return the model below its output head."""
    body = getattr(model, model.base_model_prefix, None)
    if body is None or body is model:
        raise HeadError(f"{type(model).__name__}: expected a body below the output head")
    return body


def row_states(body: Any, sequences: Sequence[Encoded], device: torch.device) -> Tensor:
    """Run each completion after its own copy of the prompt; return all hidden states, [N, H]."""
    rows = [s.prompt_ids + s.completion_ids[:-1] for s in sequences]
    states = body(input_ids=_padded(rows, device), use_cache=False).last_hidden_state
    return torch.cat(
        [states[i, len(s.prompt_ids) - 1 : len(rows[i])] for i, s in enumerate(sequences)]
    )


def forget_lengths(body: Any, device: torch.device) -> None:
    """Reset "dynamic" rotary frequencies, which only a pass shorter than the original length does:
    a long completion would change the numbers of any completions scored after it."""
    body(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """Return the argument that passes a cache, which transformers calls ``cache`` as of 5.24."""
    named = "cache" in inspect.signature(model.forward).parameters
    return {"cache" if named else "past_key_values": cache}


def shared_states(body: Any, sequences: Sequence[Encoded], device: torch.device) -> Tensor:
    """Like `row_states`, but run the completions' shared prompt only once, and cache it; raises any
    exception if the model's cache cannot be shared."""
    from transformers import DynamicCache

    prompt = torch.tensor([sequences[0].prompt_ids], device=device)
    cache = DynamicCache(config=body.config)
    output = body(input_ids=prompt, use_cache=True, **with_cache(body, cache))
    first: Tensor = output.last_hidden_state[0, -1:]  # predicts every completion's first token
    cache = output["cache" if "cache" in output else "past_key_values"]
    _widen(cache, len(sequences), device)
    rows = [s.completion_ids[:-1] for s in sequences]
    if not max(map(len, rows)):
        return first.expand(len(sequences), -1)
    output = body(input_ids=_padded(rows, device), use_cache=True, **with_cache(body, cache))
    states = output.last_hidden_state
    return torch.cat(
        [part for i, row in enumerate(rows) for part in (first, states[i, : len(row)])]
    )


def _widen(cache: Any, rows: int, device: torch.device) -> None:
    """Expand a cache of one row to ``rows`` identical rows. Plain layers are expanded as views,
    because their next update copies them anyway."""
    from transformers.cache_utils import DynamicLayer

    zeros = torch.zeros(rows, dtype=torch.long, device=device)
    for layer in cache.layers:
        if type(layer) is DynamicLayer and layer.is_initialized:
            layer.keys = layer.keys.expand(rows, -1, -1, -1)
            layer.values = layer.values.expand(rows, -1, -1, -1)
        else:
            layer.reorder_cache(zeros)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad rows on the right to equal length, [N, L]."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids.to(device)


def left_padded(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pad rows on the left to equal length, as generation needs; return ids and mask, [N, L]."""
    longest = max(map(len, rows), default=0)
    ids = torch.full((len(rows), longest), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, longest - len(row) :] = torch.tensor(row)
        mask[i, longest - len(row) :] = 1
    return ids.to(device), mask.to(device)


def computed_low(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether states of this dtype, computed now, would carry low-precision rounding, as fp32
    states do under autocast."""
    exact = dtype in (torch.float32, torch.float64)
    return not exact or torch.is_autocast_enabled(device.type)


def disagreement(got: Tensor, expected: Tensor, *, low_precision: bool) -> str | None:
    """Describe how two sets of hidden states, both [N, H], differ, if they do. The mean alone would
    hide a few wrong tokens among hundreds, which could decide a verdict."""
    mean_tolerance, largest_tolerance = LOW_PRECISION_TOLERANCES if low_precision else TOLERANCES
    got, expected = got.float(), expected.float()
    relative = (got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
    mean, largest = float(relative.mean()), float(relative.max())
    if not mean <= mean_tolerance:  # NaN fails
        return f"by {mean:.2g} on average"
    return None if largest <= largest_tolerance else f"by {largest:.2g} in one token"


class SharedPrompts:
    """Shares one pass over the prompt within a group, as long as the results match plain rows.

    The first group is run both ways, as is any group more than twice as long as all those checked
    before: a sliding window only shows beyond its length. After an exception or a numerical
    difference, the architecture is scored with plain rows from then on.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._checked_length = 0

    def states(self, body: Any, group: Sequence[Encoded], device: torch.device) -> Tensor:
        """Return the hidden states that predict the tokens of a group's completions, [N, H]."""
        if not self.enabled:
            return row_states(body, group, device)
        try:
            states = shared_states(body, group, device)
        except Exception as error:
            if ran_out_of_memory(error):
                raise
            self._disable(body, f"{type(error).__name__}: {str(error)[:200]}")
            return row_states(body, group, device)
        length = len(group[0].prompt_ids) + max(len(s.completion_ids) for s in group)
        if length > 2 * self._checked_length:
            expected = row_states(body, group[:CHECKED_ROWS], device)
            low = computed_low(states.dtype, device)
            difference = disagreement(states[: len(expected)], expected, low_precision=low)
            if difference:
                self._disable(body, f"hidden states differ from plain rows {difference}")
                return row_states(body, group, device)
            self._checked_length = length
        return states

    def _disable(self, body: Any, reason: str) -> None:
        self.enabled = False
        logger.warning(
            "%s: each completion's prompt is run separately, because sharing it failed: %s",
            type(body).__name__,
            reason,
        )
