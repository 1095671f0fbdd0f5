"""Compute the metrics of one batch, under the names that adapters log."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from grpo_guard.core.quoting import shown_name
from grpo_guard.core.verdict import NOT_CHECKED, SPOT_CHECKS, Cause, Outcome, Usage, Verdict

logger = logging.getLogger("grpo_guard")
MOST_NODES = 32
"""Maximum number of nodes with their own figures; all others share ``others``. Each name becomes a
permanent chart, and a sender can invent any number of names."""
_OTHERS = "others"
_NO_RATES = {f"guard/{outcome}_rate": 0 for outcome in Outcome}
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,40}")


def metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Rates and costs over one batch; empty for an empty batch.

    * ``guard/accept_rate``, ``guard/reject_rate`` and ``guard/abstain_rate``, and for each cause of
      abstentions ``guard/abstain_rate/{cause}``.
    * ``guard/reject_rate/{verifier}``, and ``guard/not_applicable_rate/{verifier}``, the share that
      the verifier skipped, which tells a reject rate of 0 from a verifier that never looked.
    * ``guard/seconds``, summed over completions.
    * Under spot checks, ``guard/not_checked_rate``, the share accepted unchecked.
    * For each verifier that asked a model, ``guard/{verifier}/requests``, ``cache_hits``,
      ``tokens``, ``usd`` (left out if a price is unknown), and ``latency_p50`` and ``latency_p95``
      in seconds, over the completions that the verifier asked about.
    """
    if not verdicts:
        return {}
    counts = defaultdict[str, int](int, _NO_RATES)
    for verdict in verdicts:
        counts[f"guard/{verdict.outcome}_rate"] += 1
        if verdict.abstained:
            counts[f"guard/abstain_rate/{verdict.cause}"] += 1
        for member in verdict.members or (verdict,):
            if member.verifier == NOT_CHECKED:
                continue
            # Log zeros too: trainers average whatever they receive, and a rate logged only when
            # something was rejected comes out too high.
            counts[f"guard/reject_rate/{member.verifier}"] += member.rejected
            aside = member.cause is Cause.NOT_APPLICABLE
            counts[f"guard/not_applicable_rate/{member.verifier}"] += aside
    figures = {name: count / len(verdicts) for name, count in counts.items()}
    unseen = [checked for v in verdicts if (checked := _not_checked(v)) is not None]
    if unseen:
        figures["guard/not_checked_rate"] = sum(unseen) / len(verdicts)
    figures["guard/seconds"] = sum([v.seconds for v in verdicts])
    return figures | _costs(verdicts)


def length_figures(
    verdicts: Sequence[Verdict], factors: Sequence[float] | None
) -> dict[str, float]:
    """Figures on how length factors affect one batch; empty if rewards are not scaled by length.

    ``guard/length_factor`` is the mean factor of the completions that are not rejected, 1 if there
    are none. ``guard/length_dropped`` is how many of them have a factor of 0, which cancels a
    positive reward entirely.
    """
    if factors is None:
        return {}
    kept = [f for f, v in zip(factors, verdicts, strict=True) if not v.rejected]
    return {
        "guard/length_factor": sum(kept) / len(kept) if kept else 1.0,
        "guard/length_dropped": float(sum(factor <= 0 for factor in kept)),
    }


class NodeFigures:
    """Counts each node's accepted, rejected and abstained completions.

    Counts, not rates: trainers average values over ranks and steps, and the ratio of two mean
    counts is the overall rate.
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        # Known nodes that sent nothing are logged as 0: a mean over only the steps in which a node
        # appears would not show how often it sends nothing.
        self._none_yet: dict[str, float] = {}

    def of(self, nodes: Sequence[str | None], verdicts: Sequence[Verdict]) -> dict[str, float]:
        """Count a batch as ``guard/node/{name}/{outcome}``, for every node seen so far, given each
        completion's sender (None if unknown) and verdict. Empty until some node has a name."""
        self._show(nodes)
        figures = self._none_yet.copy()
        for node, verdict in zip(nodes, verdicts, strict=True):
            if node is not None:
                name = f"guard/node/{self._shown.get(node, _OTHERS)}/{verdict.outcome}"
                figures[name] = figures.get(name, 0.0) + 1.0
        return figures

    def _show(self, nodes: Sequence[str | None]) -> None:
        """Give new nodes their own figures, up to `MOST_NODES` nodes."""
        new = [node for node in nodes if node is not None and node not in self._shown]
        if not new:
            return
        # The most active nodes come first: invented names with one completion each must not take
        # the place of nodes that do real work.
        for node, _ in Counter(new).most_common(MOST_NODES - len(self._shown)):
            self._shown[node] = _plain(node)
            self._add_name(self._shown[node])
            if self._shown[node] != node:
                logger.warning(
                    "node %s is logged as guard/node/%s", shown_name(node), self._shown[node]
                )
            if len(self._shown) == MOST_NODES:
                self._add_name(_OTHERS)

    def _add_name(self, name: str) -> None:
        self._none_yet |= {f"guard/node/{name}/{outcome}": 0.0 for outcome in Outcome}


def _plain(node: str) -> str:
    """A node's name in a form that trackers accept. A changed name ends with a dot and a digest,
    and unchanged names have no dot, so no node can imitate another's name and share its counts."""
    if _PLAIN.fullmatch(node) and node != _OTHERS:
        return node
    digest = blake2b(node.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', node[:40])}.{digest}"


def _not_checked(verdict: Verdict) -> bool | None:
    """Whether a spot check skipped the completion; None if it was not subject to a spot check."""
    if verdict.verifier == NOT_CHECKED:
        return True
    inner = [skipped for m in verdict.members if (skipped := _not_checked(m)) is not None]
    if inner:
        return any(inner)
    return False if verdict.verifier == SPOT_CHECKS else None


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
    """Usage per verifier for one completion, including the members of ensembles."""
    if verdict.usage is not None:
        yield verdict.verifier, verdict.usage
    for member in verdict.members:
        yield from _usages(member)
