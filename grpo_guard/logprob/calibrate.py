"""Measure a drift profile on honest completions, along with the false-positive rate it causes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.logprob.derive import (
    HonestTokens,
    derive,
    drift_of,
    edge_gaps,
    joined,
    tail_counts,
    wilson,
)
from grpo_guard.logprob.encode import Encoded, EncodeError
from grpo_guard.logprob.profile import BFLOAT16, DriftProfile
from grpo_guard.logprob.profile_file import FORMAT, FalsePositives, ProfileFile
from grpo_guard.logprob.replay.evidence import replayed_tokens
from grpo_guard.logprob.stats import Floats, TokenStats
from grpo_guard.logprob.verifier import LogProbVerifier

LEAST_TOKENS = 2_000
BATCH = 64
METHOD = (
    "Rates are one-sided 95 % Clopper-Pearson upper bounds, each by itself, over tokens taken as "
    "independent; 'count': never seen, so only the number of tokens bounds it; 'inherited': from "
    "the base profile. False positives are cross-fitted: the completions are split in two by "
    "prompt, each half is judged under the profile derived from the other half, and the profile "
    "in this file is derived from both; Wilson 95 % intervals."
)


class CalibrationError(ValueError):
    """Raised when no profile can be derived from the completions."""

    def __init__(self, problem: str, index: int | None = None) -> None:
        self.index = index  # of the completion at fault; None if the fault lies in the whole set
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Honest:
    completion: Completion
    encoded: Encoded
    stats: TokenStats
    drift: Floats  # sampler's log-probs minus the scorer's, [n]; [0] if none were sent


def calibrate(
    verifiers: Sequence[LogProbVerifier],
    completions: Sequence[Completion],
    *,
    base: DriftProfile = BFLOAT16,
    progress: Callable[[int, int], None] | None = None,
) -> ProfileFile:
    """Measure a drift profile on completions known to be honest.

    Args:
        verifiers: The verifiers whose false-positive rates are measured, at least one; all must
            have the same scorer identity and SamplingSpec. Scoring is done by the first verifier
            that replays a coin, or by the first verifier if none does.
        completions: Honest completions with token ids, at least 2,000 tokens for more than one
            prompt, drawn under the coin if a coin is replayed. Any ``sampler_logprobs`` must be at
            the declared temperature over the whole vocabulary.
        base: Profile that supplies any numbers the data cannot determine.
        progress: Called with the numbers of completions (scored, total).

    Raises:
        CalibrationError: there are too few tokens, a completion cannot be scored or has no ids, or
            the completions cannot have come from this sampler and policy.
        ValueError: the verifiers differ in sampler or scorer.
        OutOfMemoryError: one completion does not fit into the memory budget.
    """
    for other in verifiers[1:]:
        require_same(verifiers[0], other)
    first = next((v for v in verifiers if v.replays), verifiers[0])
    honest = score_honest(first, completions, base, progress)
    tokens = tokens_of(honest)
    n = len(tokens.edge_gap)
    if n < LEAST_TOKENS:
        raise CalibrationError(f"expected at least {LEAST_TOKENS} tokens, got {n}")
    temperature = first.sampling.temperature
    try:
        numbers = derive(tokens, base, temperature)
        halves = [
            (derive(tokens_of(one), base, temperature).build("half"), other)
            for one, other in _both_ways(honest)
        ]
    except ValueError as error:
        raise CalibrationError(str(error)) from None
    return ProfileFile(
        format=FORMAT,
        created_by=f"grpo-guard {version('grpo-guard')}",
        name=f"calibrated ({base.name})",
        base=base.name,
        method=METHOD,
        sampling=first.sampling,
        identity=first.scorer.identity(),
        completions=len(honest),
        tokens=n,
        profile=numbers,
        edge_gaps=edge_gaps(tokens.edge_gap),
        drift=drift_of(tokens.drift),
        tail_counts=tail_counts(tokens.tail_mass),
        false_positives=tuple(_false_positives(verifier, halves) for verifier in verifiers),
    )


def require_same(one: LogProbVerifier, other: LogProbVerifier) -> None:
    """Require that one profile can serve both verifiers; raises ValueError otherwise."""
    for what, a, b in (
        ("sampling", one.sampling, other.sampling),
        ("identity", one.scorer.identity(), other.scorer.identity()),
    ):
        if a != b:
            raise ValueError(
                f"{other.name}: {what}: expected that of {one.name}, {a}, since a profile holds "
                f"for one of each; got {b}"
            )


def score_honest(
    verifier: LogProbVerifier,
    completions: Sequence[Completion],
    base: DriftProfile,
    progress: Callable[[int, int], None] | None = None,
) -> list[Honest]:
    """Score honest completions; raises the errors of `calibrate`."""
    encoded = [_encoded(verifier, i, completion) for i, completion in enumerate(completions)]
    honest: list[Honest] = []
    for start in range(0, len(encoded), BATCH):
        batch = encoded[start : start + BATCH]
        scored = verifier.score(batch, base)
        for i, stats in enumerate(scored, start):
            if not stats.finite:
                raise CalibrationError("(model): expected numbers, got NaN", i)
            if not np.isfinite(stats.logprob[encoded[i].places]).all():
                raise CalibrationError("completion_ids: a token that the policy cannot emit", i)
            drift = _drift(completions[i], stats, i)
            if encoded[i].given:
                stats, drift = stats.at(encoded[i].places), drift[encoded[i].places[: len(drift)]]
            honest.append(Honest(completions[i], encoded[i].drawn(), stats, drift))
        if progress is not None:
            progress(len(honest), len(encoded))
    return honest


def tokens_of(honest: Iterable[Honest]) -> HonestTokens:
    scored = list(honest)
    return HonestTokens(
        edge_gap=joined([h.stats.edge_gap for h in scored]),
        tail_mass=joined([h.stats.tail_mass for h in scored]),
        drift=joined([h.drift for h in scored]),
        replayed=[replayed for h in scored if (replayed := replayed_tokens(h.stats))],
    )


def _encoded(verifier: LogProbVerifier, index: int, completion: Completion) -> Encoded:
    if not completion.completion_ids:
        raise CalibrationError("completion_ids: expected token ids, got none", index)
    given = completion.sampler_logprobs
    if given is not None and len(given) != len(completion.completion_ids):
        raise CalibrationError(
            f"sampler_logprobs: expected {len(completion.completion_ids)} numbers, one per token, "
            f"got {len(given)}",
            index,
        )
    try:
        return verifier.encode(completion)
    except EncodeError as error:
        raise CalibrationError(f"(completion): {error.cause.value}: {error}", index) from None


def _drift(completion: Completion, stats: TokenStats, index: int) -> Floats:
    if completion.sampler_logprobs is None:
        return np.zeros(0)
    difference: Floats = np.array(completion.sampler_logprobs[: len(stats)]) - stats.logprob
    if not np.isfinite(difference).all():
        raise CalibrationError("sampler_logprobs: expected finite numbers", index)
    return difference


def _both_ways(honest: Sequence[Honest]) -> list[tuple[list[Honest], list[Honest]]]:
    """Return both pairs of halves (to calibrate on, to evaluate). Completions of the same prompt
    share their context, so they stay in the same half."""
    side: dict[tuple[int, ...], int] = {}
    for h in honest:
        side.setdefault(h.encoded.prompt_ids, len(side) % 2)
    if len(side) < 2:
        raise ValueError("prompt: expected completions of at least two prompts, got one")
    parts: tuple[list[Honest], list[Honest]] = ([], [])
    for h in honest:
        parts[side[h.encoded.prompt_ids]].append(h)
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def _false_positives(
    verifier: LogProbVerifier, halves: Sequence[tuple[DriftProfile, Sequence[Honest]]]
) -> FalsePositives:
    verdicts = [
        verifier.judge(h.completion, h.encoded, h.stats, profile)
        for profile, others in halves
        for h in others
    ]
    rejected = sum(verdict.rejected for verdict in verdicts)
    low, high = wilson(rejected, len(verdicts))
    return FalsePositives(
        verifier=verifier.name,
        alpha=verifier.alpha,
        rejected=rejected,
        abstained=sum(verdict.abstained for verdict in verdicts),
        completions=len(verdicts),
        low=low,
        high=high,
    )
