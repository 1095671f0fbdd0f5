"""Figures of one batch, under the names that the adapters log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from grpo_guard.verdict import Usage, Verdict


def metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Rates and costs over one batch; empty for an empty batch.

    ``guard/accept_rate``, ``reject_rate``, ``abstain_rate``; ``guard/abstain_rate/{cause}``;
    ``guard/reject_rate/{verifier}``; ``guard/seconds``, summed; and for each verifier that asked a
    model ``guard/{verifier}/requests``, ``cache_hits``, ``tokens``, ``usd`` (left out where a price
    is unknown), ``latency_p50`` and ``latency_p95`` in seconds over the completions it asked about.
    """
    if not verdicts:
        return {}
    counts = defaultdict[str, int](int)
    for verdict in verdicts:
        counts[f"guard/{verdict.outcome.value}_rate"] += 1
        if verdict.abstained:
            counts[f"guard/abstain_rate/{verdict.cause.value}"] += 1
        for member in verdict.members or (verdict,):
            # Also where it is 0: trainers average what they are given, and a rate that is logged
            # only when something was rejected comes out too high.
            counts[f"guard/reject_rate/{member.verifier}"] += member.rejected
    rates = dict.fromkeys(("guard/accept_rate", "guard/reject_rate", "guard/abstain_rate"), 0.0) | {
        name: count / len(verdicts) for name, count in counts.items()
    }
    return rates | {"guard/seconds": sum(v.seconds for v in verdicts)} | _costs(verdicts)


def _costs(verdicts: Sequence[Verdict]) -> dict[str, float]:
    by_verifier: dict[str, list[Usage]] = defaultdict(list)
    for verdict in verdicts:
        for name, usage in _usages(verdict):
            by_verifier[name].append(usage)
    costs: dict[str, float] = {}
    for name, usages in by_verifier.items():
        prefix = f"guard/{name}"
        costs[f"{prefix}/requests"] = sum(u.requests for u in usages)
        costs[f"{prefix}/cache_hits"] = sum(u.cache_hits for u in usages)
        costs[f"{prefix}/tokens"] = sum(u.tokens_in + u.tokens_out for u in usages)
        prices = [u.usd for u in usages if u.requests]
        if prices and None not in prices:
            costs[f"{prefix}/usd"] = sum(p for p in prices if p is not None)
        waited = sorted(u.latency for u in usages if u.requests)
        if waited:
            costs[f"{prefix}/latency_p50"] = waited[(len(waited) - 1) // 2]
            costs[f"{prefix}/latency_p95"] = waited[int(0.95 * (len(waited) - 1))]
    return costs


def _usages(verdict: Verdict) -> Iterator[tuple[str, Usage]]:
    """What was asked for one completion; an ensemble's members speak for it."""
    if verdict.usage is not None:
        yield verdict.verifier, verdict.usage
    for member in verdict.members:
        yield from _usages(member)
