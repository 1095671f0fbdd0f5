"""`Counts`: what one completion may do, and a node may not do again and again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from grpo_guard.completion import Completion
from grpo_guard.nodes.fortunes import NodeEvidenceProcess
from grpo_guard.nodes.intake import FREQUENT_VERIFIER, mark_of
from grpo_guard.nodes.same_prompt import FEWEST_NODES, log_e_values
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.store import NodeStore, in_folder
from grpo_guard.rollouts import rollout_of
from grpo_guard.verdict import Finding, Verdict, reject

FREQUENT_KIND = "frequent_finding"
FADE: Final = 0.05
"""What each compared prompt takes off the logarithm of a convicted node's fortune, so that one that
has stopped is released even where its peers never have the finding. A bet that only loses is fair.
"""
NOTHING: Final[dict[str, Any]] = {"format": 1, "nodes": []}
"""State of counts in which nothing was counted."""


class _Sent(NamedTuple):
    """What was compared of a node: a digest of its answers, and the evidence of each prompt."""

    digest: int
    log_es: list[float]


class Counts:
    """Rejects completions with a finding that their node has far more often than its peers.

    Some findings must not reject by themselves, since honest work has them too: a wrong sum that is
    taken back, a wrong sum in words. An attacker who sends nothing else teaches it all the same.
    So nodes are compared on the prompts that at least three of them answered in a batch
    (`same_prompt`); a prompt that fewer answered says nothing, however many findings are in it. The
    evidence of prompts and rounds multiplies to one fortune per node (`NodeEvidenceProcess`),
    all kinds of findings together. Of a node whose fortune has reached the number of nodes over
    ``alpha``, the completions that have the finding are rejected, and no others.

    By Ville's inequality the chance that any honest node *ever* loses anything is at most
    ``alpha``, over all rounds, however unequal the prompts, if on each prompt fewer than half of
    the nodes are malicious and the swarm's members stay the same.

    These rejections are no evidence for the guard's own ledger: an honest model with a habit of its
    own (one that corrects itself where others do not) loses the completions that show it and stays
    in the swarm.

    Args:
        fortunes: For this alone.
        alpha: In (0, 1).
        odds: How many times an honest node's odds of such a finding may be those of its honest
            peers: models differ in skill.
    """

    def __init__(self, fortunes: NodeEvidenceProcess, alpha: float, odds: float) -> None:
        self.fortunes = fortunes
        self.alpha = alpha
        self.odds = odds

    def judged(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
    ) -> list[Verdict]:
        """The verdicts, and rejections of what a node has too often.

        Args:
            batch: The completions, all that came together.
            verdicts: What a rule said of each.
            counted: The finding of each that counts; None where it has none.
        """
        convicted = self._convicted(batch, verdicts, counted)
        return [
            verdict
            if found is None or verdict.rejected or _name(completion) not in convicted
            else _rejected(completion, verdict, found)
            for completion, verdict, found in zip(batch, verdicts, counted, strict=True)
        ]

    def convicted(self) -> frozenset[str]:
        """Nodes whose completions with a finding are rejected."""
        return self._reaching(self.fortunes.known(), 0)

    def _convicted(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
    ) -> frozenset[str]:
        """Who is convicted after this batch."""
        known = self.fortunes.known()
        before = self._reaching(known, 0)
        # Where nobody has a finding each bet is 1 whatever came before, so that it may be skipped:
        # an attacker who begins late then pays for no clean batches before.
        if not before and not any(counted):
            return before
        compared = self._compared(batch, verdicts, counted)
        if not compared:
            return before
        after = self.fortunes.add({
            node: (sent.digest, [sum(sent.log_es) - FADE * len(sent.log_es) * (node in before)])
            for node, sent in compared.items()
        })  # fmt: skip
        logs = {node: fortune.log for node, fortune in after.items()}
        return self._reaching({**known, **logs}, len(compared))

    def _reaching(self, fortunes: Mapping[str, float], compared: int) -> frozenset[str]:
        bar = math.log(max(FEWEST_NODES, compared, len(fortunes)) / self.alpha)
        return frozenset(node for node, log in fortunes.items() if log >= bar)

    def _compared(
        self,
        batch: Sequence[Completion],
        verdicts: Sequence[Verdict],
        counted: Sequence[Finding | None],
    ) -> dict[str, _Sent]:
        """What the prompts that several nodes answered say of each of them.

        A rollout counts once for each prompt that it answers. What its other segments have, whose
        prompts nobody can be compared on, counts for one of these: cutting an answer in two must
        not hide half of it.
        """
        answers = _Answers()
        digests = defaultdict[str, list[bytes]](list)
        for i, (completion, verdict, found) in enumerate(
            zip(batch, verdicts, counted, strict=True)
        ):
            # What nobody could read says nothing, for its node or against the others.
            if (node := _name(completion)) is not None and not verdict.abstained:
                _, prompt, same, _ = mark_of(completion)
                rollout = rollout_of(completion)
                answers.add(prompt, node, i if rollout is None else rollout, found is not None)
                digests[node].append(same)
        compared: dict[str, _Sent] = {}
        for shares in answers.shares():
            for node, log_e in log_e_values(shares, self.odds).items():
                if node not in compared:
                    compared[node] = _Sent(_digest(digests[node]), [])
                compared[node].log_es.append(log_e)
        return compared


class _Answers:
    """Who answered which prompts, by rollouts, and whether with the finding."""

    def __init__(self) -> None:
        self._prompts: dict[bytes, dict[str, dict[Hashable, bool]]] = {}
        self._segments: dict[tuple[str, Hashable], list[tuple[bytes, bool]]] = {}

    def add(self, prompt: bytes, node: str, rollout: Hashable, having: bool) -> None:
        """One segment; ``rollout`` is unique to its node's rollout."""
        of_node = self._prompts.setdefault(prompt, {}).setdefault(node, {})
        of_node[rollout] = of_node.get(rollout, False) or having
        self._segments.setdefault((node, rollout), []).append((prompt, having))

    def shares(self) -> Iterator[dict[str, float]]:
        """For each prompt, the share of each node's rollouts that have the finding."""
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


def counted_in(folder: Path, rule: str) -> NodeEvidenceProcess:
    """What the rule of this name has counted in a store that a run may be using.

    Raises:
        LedgerError: nothing is counted there under that name.
    """
    path = in_folder(folder)
    fortunes = NodeEvidenceProcess(store=NodeStore(folder), name=rule) if path.is_file() else None
    if fortunes is None or not fortunes.known():
        raise LedgerError(f"{path}: expected findings counted by {rule!r}, got none")
    return fortunes


def _name(completion: Completion) -> str | None:
    """Its node, bounded and told apart from every other."""
    node = mark_of(completion)[0]
    return None if node is None else node.decode("utf-8", "surrogateescape")


def _rejected(completion: Completion, verdict: Verdict, found: Finding) -> Verdict:
    node = (completion.node or "")[:80]
    message = f"node {node!r} has {found.kind} more often than its peers, beyond chance"
    said = Finding(FREQUENT_KIND, message, found.char_span, found.token_span)
    return reject(FREQUENT_VERIFIER, findings=(said, *verdict.findings))


def _digest(answers: Sequence[bytes]) -> int:
    """Of a node's answers in any order, so that a batch that is judged twice counts once."""
    digest = blake2b(b"".join(sorted(answers)), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
