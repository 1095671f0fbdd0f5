"""Check that the sampler and model match the declaration; a mismatch is never held against a node.

If temperature 1.0 is declared but nodes sample at 2.0, most honest work is rejected, and no verdict
explains why. Three comparisons are made: the trainer's own options with the `SamplingSpec`, the
model being trained with the verifier's model, and the tokens in the first batches with the declared
temperature.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.forks import Lock
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.logprob.stats import FLATTENINGS, LARGEST_TOP_K, TokenStats
from grpo_guard.logprob.verifier import LogProbVerifier

logger = logging.getLogger("grpo_guard")

_OFF: Final[Mapping[str, float]] = {
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
_FEWEST: Final = 300  # tokens for judging a node's temperature
_ENOUGH: Final = 50_000  # tokens over all nodes after which checking stops
_CLEAR: Final = 12.0  # nats by which another temperature must explain the tokens better
_TOLERANCE: Final = 0.1
_MOST_NODES: Final = 256
_LOCK: Final = Lock()  # shared by all checks, which are pickled with their verifiers
_TENSORS: Final = 8
_ENTRIES: Final = 64


class MismatchError(ValueError):
    """Raised when the declared sampler or the verifier's model is not the trainer's."""


def sampler_differences(sampling: SamplingSpec, options: Mapping[str, Any]) -> list[str]:
    """List the trainer options that contradict the declaration, one sentence each.

    Options are named after the fields of `SamplingSpec`. An option that is None or missing counts
    as "off", except for the temperature, which is then not compared.
    """
    found = []
    for name in ("temperature", *_OFF):
        declared, used = getattr(sampling, name), options.get(name)
        if used is None or (name == "top_k" and used < 0):
            used = _OFF.get(name, declared)
        if not math.isclose(declared, used, rel_tol=1e-6):
            found.append(f"{name}: declared {declared}, the trainer samples with {used}")
    longest, limit = options.get("max_new_tokens"), sampling.max_new_tokens
    if longest is not None and limit is not None and limit < longest:
        found.append(f"max_new_tokens: declared {limit}, the trainer samples up to {longest}")
    return found


def require_same(
    verifier: CompletionVerifier, options: Mapping[str, Any] | None, model: Any
) -> None:
    """Compare each log-prob verifier in a tree with a trainer's sampler options, as for
    `sampler_differences`, and with its unwrapped model; None skips either.

    Raises:
        MismatchError: a verifier built with ``strict=True`` differs; others only log a warning.
    """
    for inner in inner_verifiers(verifier):
        if isinstance(inner, LogProbVerifier):
            differing = sampler_differences(inner.sampling, options) if options else []
            remedy = "correct SamplingSpec or the trainer's options, or honest work is rejected"
            problems = [f"{inner.name}: {problem}; {remedy}" for problem in differing]
            own = getattr(inner.scorer, "model", None)
            if model is not None and own is not None and not _same_weights(own, model):
                problems.append(
                    f"{inner.name}: its model has other weights than the one that is trained; pass "
                    "the trainer's own object, or honest work is rejected after the first updates"
                )
            if problems and inner.strict:
                raise MismatchError("; ".join(problems))
            for problem in problems:
                logger.warning("%s", problem)


def warn_of_room(verifier: CompletionVerifier, prompts: Any, longest: int) -> None:
    """Warn if a log-prob verifier's model has too few positions for a batch's ``prompts`` plus
    ``longest`` sampled tokens."""
    for inner in inner_verifiers(verifier):
        if not isinstance(inner, LogProbVerifier) or inner.encoder.window is None:
            continue
        window = inner.encoder.window
        prompt = max(map(inner.encoder.prompt_length, prompts or ()), default=0)
        if prompt + longest > window > prompt:
            logger.warning(
                "%s: a prompt of %d tokens and max_completion_length=%d make %d, but the model has "
                "%d positions (max_position_embeddings). Longer completions are rejected as "
                "overlong: set max_completion_length=%d or lower",
                inner.name, prompt, longest, prompt + longest, window, window - prompt,
            )  # fmt: skip


def unlimited_warning(name: str, sampling: SamplingSpec) -> str | None:
    """Describe the blind spot of a sampler without truncation; None if it truncates."""
    if sampling.truncates:
        return None
    return (
        f"{name}: the declared sampler truncates nothing, so no token is outside its support. "
        "Foreign text of a few likely words shows in a node's batch (set Completion.node) but "
        "often not in a single completion; a wrong digit and a choice among samples do not show "
        "at all. top_k or top_p makes the test sharper; a public coin (SeedReplayVerifier) closes "
        "the gap"
    )


class TemperatureCheck:
    """Estimates the temperature of incoming tokens until it has seen enough of them. Thread-safe.

    The likelihood of the tokens under p^b is known for b = 1, 3/4 and 1/2 (see `TokenStats`). A
    parabola through these three values peaks at an exponent b near the true one, so the estimate is
    temperature / b. Nucleus sampling makes tokens look colder; that is not reported.
    """

    def __init__(self, name: str, sampling: SamplingSpec) -> None:
        self.name, self.sampling = name, sampling
        self._nodes = defaultdict[str | None, _Sums](_Sums)
        self._left = _ENOUGH

    def observe(self, stats: Mapping[int, TokenStats], nodes: Mapping[int, str | None]) -> None:
        """Add a batch; warn once if most nodes seem to sample at another temperature."""
        if self._left <= 0:
            return
        with _LOCK:
            for i, one in stats.items():
                if one.finite:
                    known_or_room = nodes[i] in self._nodes or len(self._nodes) < _MOST_NODES
                    self._nodes[nodes[i] if known_or_room else None].add(one)
                    self._left -= len(one)
            known = [sums for sums in self._nodes.values() if sums.tokens >= _FEWEST]
            seen = [b for sums in known if (b := self._other(sums)) is not None]
            if not known or len(seen) * 2 <= len(known):
                return
            self._left = 0
        like = self.sampling.temperature / float(np.median(seen))
        logger.warning(
            "%s: temperature %g is declared, and the completions of %d of %d nodes look sampled at "
            "about %.2g. If they are honest, correct SamplingSpec or the samplers: at another "
            "temperature honest work is rejected or poison passes",
            self.name, self.sampling.temperature, len(seen), len(known), like,
        )  # fmt: skip

    def _other(self, sums: "_Sums") -> float | None:
        """Return the exponent that a node's tokens clearly support, if it is not about 1."""
        exponent, gain = sums.best()
        cut = self.sampling.top_p < 1 or self.sampling.min_p > 0
        cut |= self.sampling.top_k > LARGEST_TOP_K
        colder = exponent > 1
        if gain < _CLEAR or abs(exponent - 1) < _TOLERANCE or (colder and cut):
            return None
        return exponent


class _Sums:
    """Log-likelihood gain of a node's tokens under p^b over p, for each b of FLATTENINGS."""

    def __init__(self) -> None:
        self.tokens = 0
        self.gains = np.zeros(len(FLATTENINGS))

    def add(self, stats: TokenStats) -> None:
        inside = stats.in_set & np.isfinite(stats.logprob)
        exponents = np.asarray(FLATTENINGS)
        log_p = (stats.logprob - stats.log_set_mass)[inside, None]
        normalisers = stats.log_flat_mass[inside] - exponents * stats.log_set_mass[inside, None]
        self.gains += ((exponents - 1) * log_p - normalisers).sum(axis=0)
        self.tokens += int(inside.sum())

    def best(self) -> tuple[float, float]:
        """Return the exponent at the peak of the parabola through 1/2, 3/4 and 1, and its gain."""
        half, three_quarters = (float(self.gains[FLATTENINGS.index(b)]) for b in (0.5, 0.75))
        # With x = 4 (1 - b), the gain f is f(0) = 0 at b = 1, f(1) at b = 3/4, f(2) at b = 1/2.
        curvature = half - 2 * three_quarters
        slope = three_quarters - curvature / 2
        if curvature >= 0:  # no maximum: take the far end if it yields a gain
            return (0.5, half) if half > 0 else (1.0, 0.0)
        x = min(max(-slope / curvature, -2.0), 2.0)
        return 1 - x / 4, slope * x + curvature * x * x / 2


def _same_weights(own: Any, trained: Any) -> bool:
    """Whether two models are the same object or agree on a sample of their tensors."""
    if own is trained:
        return True
    mine, theirs = _parameters(own), _parameters(trained)
    shared = [name for name in mine if name in theirs]
    # Models from another library, wrapped or sharded away (ZeRO-3 leaves empty tensors) have no
    # names in common, and no difference is then reported.
    chosen = shared[:: max(1, len(shared) // _TENSORS)]
    return all(_alike(mine[name], theirs[name]) for name in chosen)


def _parameters(model: Any) -> dict[str, Any]:
    named = getattr(model, "named_parameters", None)
    if not callable(named):
        return {}
    return {
        name.removeprefix("module.").removeprefix("base_model.model."): tensor
        for name, tensor in named()
        if tensor.numel()
    }


def _alike(mine: Any, theirs: Any) -> bool:
    """Whether the first entries of two tensors are equal in the coarser of their number formats."""
    if mine.shape != theirs.shape:
        return False
    a, b = (tensor.detach().flatten()[:_ENTRIES].cpu() for tensor in (mine, theirs))
    coarser = a.dtype if a.element_size() <= b.element_size() else b.dtype
    return bool((a.to(coarser) == b.to(coarser)).all())
