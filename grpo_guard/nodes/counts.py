"""`Counts`: rejects findings that are harmless once but not when a node keeps repeating them."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.quoting import shown_name
from grpo_guard.core.rollouts import rollout_of
from grpo_guard.core.verdict import Finding, Verdict, reject
from grpo_guard.nodes.e_process import log_threshold
from grpo_guard.nodes.e_process_memory import FORMAT, EProcessMemory, digest_of
from grpo_guard.nodes.intake import FREQUENT_VERIFIER, mark_of
from grpo_guard.nodes.same_prompt import FEWEST_NODES, log_e_values
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.store import NodeStore, in_folder
from grpo_guard.nodes.stored import counting_rules

FREQUENT_KIND = "frequent_finding"
COUNT_ALPHA: Final = 5e-4
"""Default chance that any honest node ever loses anything to one rule."""
FADE: Final = 0.05
"""Subtracted from a convicted node's log factor per compared prompt, so that a node whose work no
longer has the finding is released even if its peers never have it. Losing bets are always fair."""
NOTHING: Final[dict[str, Any]] = {"format": FORMAT, "nodes": []}
"""The state of empty counts."""


class Counts:
    """Rejects completions with a finding that their node has far more often than its peers.

    Some findings must not reject on their own, because honest work has them too: a wrong sum that
    is corrected later, a wrong sum in words. But an attacker who sends nothing else still teaches
    the error. So nodes are compared on the prompts that at least three of them answered in a batch
    (`same_prompt`). The evidence multiplies into one `EProcess` per node, over all kinds of
    findings. Once a node's e-value reaches the number of nodes divided by ``alpha``, its
    completions with the finding are rejected, and no others; the guard's own ledger does not count
    these rejections.

    By Ville's inequality the chance that any honest node *ever* loses anything is at most
    ``alpha``, over all rounds and however unequal the prompts, if fewer than half of the nodes on
    each prompt are malicious and the swarm's membership stays the same.

    Args:
        e_processes: Memory for the evidence, not shared with any other object.
        alpha: Chance that any honest node ever loses anything, in (0, 1).
        odds: Maximum ratio of an honest node's odds of such a finding to those of its honest peers;
            models differ in skill.
    """

    def __init__(self, e_processes: EProcessMemory, alpha: float, odds: float) -> None:
        self.e_processes = e_processes
        self.alpha = alpha
        self.odds = odds

    def judged(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
    ) -> list[Verdict]:
        """Return a rule's verdicts on completions that arrived together, adding rejections for
        findings that a node has too often; ``counted`` holds each completion's finding, or None."""
        convicted = self._convicted(batch, verdicts, counted)
        return [
            verdict
            if found is None or verdict.rejected or _name(completion) not in convicted
            else _rejected(completion, verdict, found)
            for completion, verdict, found in zip(batch, verdicts, counted, strict=True)
        ]

    def convicted(self) -> frozenset[str]:
        """Return the convicted nodes, whose completions with a finding are rejected."""
        return self._reaching(self.e_processes.log_e_values(), 0)

    def _convicted(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
    ) -> frozenset[str]:
        """Record a batch and return the nodes convicted after it."""
        known = self.e_processes.log_e_values()
        before = self._reaching(known, 0)
        # Without any finding, each factor is 1 regardless of the past and can be skipped, so that
        # clean batches do not shrink the stakes against an attacker who starts late.
        if not before and not any(counted):
            return before
        compared = self._compared(batch, verdicts, counted, before)
        if not compared:
            return before
        after = self.e_processes.add(compared)
        logs = {node: process.log_e_value for node, process in after.items()}
        return self._reaching({**known, **logs}, len(compared))

    def _reaching(self, log_e_values: Mapping[str, float], compared: int) -> frozenset[str]:
        threshold = log_loss(self.alpha, max(compared, len(log_e_values)))
        return frozenset(node for node, log_e in log_e_values.items() if log_e >= threshold)

    def _compared(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
        before: frozenset[str],
    ) -> dict[str, tuple[int, list[float]]]:
        """Compute each node's digest and log factor from the prompts that several nodes answered.

        A rollout counts once for each prompt that it answers. Findings in segments whose prompts
        allow no comparison count towards one of the prompts that do: cutting an answer in two must
        not hide half of it.
        """
        answers = _Answers()
        digests = defaultdict[str, list[bytes]](list)
        for i, (completion, verdict, found) in enumerate(
            zip(batch, verdicts, counted, strict=True)
        ):
            # An unreadable completion is not evidence, neither for its node nor against the others.
            if (node := _name(completion)) is not None and not verdict.abstained:
                _, prompt, same, _ = mark_of(completion)
                rollout = rollout_of(completion)
                answers.add(prompt, node, i if rollout is None else rollout, found is not None)
                digests[node].append(same)
        log_factors = defaultdict[str, float](float)
        for shares in answers.shares():
            for node, log_e in log_e_values(shares, self.odds).items():
                log_factors[node] += log_e - FADE * (node in before)
        return {node: (digest_of(digests[node]), [log]) for node, log in log_factors.items()}


class _Answers:
    """The nodes that answered each prompt, by rollout, and whether the answer has the finding."""

    def __init__(self) -> None:
        self._prompts: dict[bytes, dict[str, dict[Hashable, bool]]] = {}
        self._segments: dict[tuple[str, Hashable], list[tuple[bytes, bool]]] = {}

    def add(self, prompt: bytes, node: str, rollout: Hashable, having: bool) -> None:
        """Add one segment; ``rollout`` identifies one rollout of the node."""
        of_node = self._prompts.setdefault(prompt, {}).setdefault(node, {})
        of_node[rollout] = of_node.get(rollout, False) or having
        self._segments.setdefault((node, rollout), []).append((prompt, having))

    def shares(self) -> Iterator[dict[str, float]]:
        """Yield, for each prompt, the share of each node's rollouts that have the finding."""
        for (node, rollout), segments in self._segments.items():
            if len(segments) > 1 and any(having for _, having in segments):
                self._fold(node, rollout, segments)
        for nodes in self._prompts.values():
            yield {node: sum(of.values()) / len(of) for node, of in nodes.items()}

    def _fold(self, node: str, rollout: Hashable, segments: Sequence[tuple[bytes, bool]]) -> None:
        comparable = [p for p, _ in segments if len(self._prompts[p]) >= FEWEST_NODES]
        elsewhere = any(having for p, having in segments if p not in comparable)
        if comparable and elsewhere:
            self._prompts[min(comparable)][node][rollout] = True


def log_loss(alpha: float, nodes: int) -> float:
    """Return the log e-value from which one of this many nodes loses its completions with a
    finding."""
    return log_threshold(alpha, max(FEWEST_NODES, nodes))


def counted_in(folder: Path, rule: str) -> EProcessMemory:
    """Open the evidence counted by the named rule, in a store that a run may be using; raises
    LedgerError if there is none."""
    path = in_folder(folder)
    counted = EProcessMemory(store=NodeStore(folder), name=rule) if path.is_file() else None
    if counted is None or not counted.log_e_values():
        known = counting_rules(path) if path.is_file() else []
        others = f", which has counted none; rules that have: {', '.join(known)}" if known else ""
        got = f"got {rule!r}{others}" if known else "got none"
        raise LedgerError(f"{path}: expected a rule that has counted findings, {got}")
    return counted


def _name(completion: Completion) -> str | None:
    """Return the name of a completion's node, bounded in length and unique; None if it has none."""
    node = mark_of(completion)[0]
    return None if node is None else node.decode("utf-8", "surrogateescape")


def _rejected(completion: Completion, verdict: Verdict, found: Finding) -> Verdict:
    node = (completion.node or "")[:80]
    message = f"node {shown_name(node)} has {found.kind} more often than its peers, beyond chance"
    frequent = Finding(FREQUENT_KIND, message, found.char_span, found.token_span)
    return reject(FREQUENT_VERIFIER, findings=(frequent, *verdict.findings))
