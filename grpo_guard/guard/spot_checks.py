"""Verify a sample of each node's completions, chosen in a way that the node cannot predict.

A node that knew the choice beforehand would poison only what is not drawn, or vary its texts until
its m poisoned ones were skipped, which takes about ``(1 - share) ** -m`` tries. So a public coin
known in advance is not offered. There are two ways to choose:

* **The verifier's own key** (the default): the choice is a keyed hash over the node's commitment (a
  digest of everything that the node sent in this batch, in order), the completion's index within
  it, and the number of the call. If text that passed unchecked is sent again, a fresh draw decides.
  The verifier must be trusted: it could spare a friend without anybody noticing.
* **A value that is revealed later** (`SpotCheck.begin_round`): nodes publish their commitments,
  *then* a value appears that no node chose or knew, and anybody can recompute the choice. Use a
  public beacon published after the last commitment, or a hash of shares that all nodes committed
  to. The last node to reveal its share can choose to stay silent, so silence must come at a cost.

Unchecked completions are accepted, because the operator chose that risk, with a finding of their
own (`NOT_CHECKED`); they do not count as evidence for a ledger. Everything that a node sent in the
batch is checked in three cases:

* A drawn completion is rejected.
* A drawn completion made a verifier abstain, which a text can do (`author_can_abstain`). Otherwise
  poison that does so would earn its reward whenever it was not drawn.
* No drawn completion got a decision. Otherwise unchecked completions would be silently rewarded in
  an outage.

The last two cases do not count against the node later, because a failing machine looks the same.

Members see only the drawn completions, so put `SpotCheck` around expensive verifiers and combine
the rest with ``&``. `grpo_guard.guard.spot_odds` computes the probability of finding poison.
"""

import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from grpo_guard.core.arguments import require_share
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.p_values import smallest_p
from grpo_guard.core.scope import Scope
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import (
    BARRING_CAUSES,
    NOT_CHECKED,
    SPOT_CHECKS,
    Cause,
    Finding,
    Verdict,
    accept,
)
from grpo_guard.core.verifier import CompletionVerifier, Composed
from grpo_guard.guard.spot_odds import checked_of
from grpo_guard.nodes.checks import Checks, ChecksOfNodes
from grpo_guard.nodes.identity.envelope import prompt_bytes
from grpo_guard.nodes.saved import reading, whole
from grpo_guard.nodes.store import NodeStore

_UNCHECKED: Final = Finding(NOT_CHECKED, "not among the completions that were drawn for a check")
# Causes that no single text brings about, or that are intended. A full check would be pointless.
_NOT_ONE_TEXT: Final = (
    Cause.RATE_LIMITED,
    Cause.CIRCUIT_OPEN,
    Cause.BUDGET,
    Cause.NOT_APPLICABLE,
)
_SHORTEST_VALUE: Final = 16


class SpotCheck(Composed):
    """Verifies a share of each node's completions, and all of them once a forgery is found.

    If a node has n completions in a batch, ``ceil(share * n)`` of them are drawn, at least one. All
    n are checked if a drawn completion is rejected or evades its check (see the module's
    docstring). A node is checked more while it is new, and fully after being caught, until
    ``settled_after`` of its completions have been checked and accepted. Completions without a node
    count as one new node.

    Node names must be authenticated; otherwise poison can be sent under the names of settled nodes.
    Raises ValueError if an argument is out of range.

    Args:
        members: The verifiers to run; if there are several, all must accept.
        share: Share of a settled node's completions to check, in (0, 1]; no node is checked less.
        newcomers: Share of a new node's completions to check; raised to ``share`` if it is lower.
        settled_after: Number of accepted completions after which a node is settled, >= 1.
        key: Secret key for the choice, at least 16 characters, for reproducible runs. If None, the
            key is random and known to this object alone. The module's docstring explains how a node
            could exploit a known key.
        store: Where check results are remembered.

    Examples:
        >>> guard = Guard(SpotCheck(LogProbBoundVerifier(...), share=0.1))
    """

    name = SPOT_CHECKS
    scope: Scope = "history"
    shares_calls = False  # a choice covers one batch, and its results are kept
    shows_some = True
    compares_ids = False  # it compares nothing for completions that are not drawn

    def __init__(
        self,
        *members: CompletionVerifier,
        share: float = 0.1,
        newcomers: float = 0.5,
        settled_after: int = 256,
        key: str | None = None,
        store: NodeStore | None = None,
    ) -> None:
        if not members:
            raise ValueError("SpotCheck(): expected at least one verifier, got none")
        super().__init__(*members)
        require_share("share", share)
        require_share("newcomers", newcomers)
        if isinstance(settled_after, bool) or not 1 <= settled_after < 2**62:
            raise ValueError(f"settled_after: expected a count >= 1, got {settled_after!r}")
        self.share, self.newcomers = share, max(newcomers, share)
        self.settled_after = settled_after
        self.member = members[0] if len(members) == 1 else AllOf(*members)
        self.memory = ChecksOfNodes(store, SPOT_CHECKS)
        self._key = secrets.token_bytes(64) if key is None else _key(_long_enough("key", key))
        self._committed: dict[str, str] | None = None
        self._calls = 0

    @property
    def smallest_p(self) -> float:
        """The smallest p-value the members can reach."""
        return smallest_p(self.member)

    def begin_round(self, value: str, committed: Mapping[str, str]) -> None:
        """From now on, choose using a value revealed after the nodes had committed.

        A node that did not commit, or sent something other than it committed to, is checked fully.
        A round is one batch: a commitment is valid only for the first batch that a node is in.
        Otherwise completions that once passed unchecked would do so again. Raises ValueError if the
        value is too short.

        Args:
            value: The revealed value, at least 16 characters; unknown to a node until it has
                committed.
            committed: Maps each node to the `commitment` to its completions, in order.
        """
        self._key, self._committed = _key(_long_enough("value", value)), dict(committed)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        places: dict[str | None, list[int]] = defaultdict(list)
        for i, completion in enumerate(batch):
            places[completion.node].append(i)
        drawn = self._drawn(batch, places)
        found = self._checked(batch, sorted(drawn))
        verdicts_of: dict[str | None, list[Verdict]] = defaultdict(list)
        for i, verdict in found.items():
            verdicts_of[batch[i].node].append(verdict)
        suspects = [node for node, verdicts in verdicts_of.items() if self._suspect(verdicts)]
        rest = {i for node in suspects for i in places[node]} - drawn
        found |= self._checked(batch, sorted(rest))
        self._remember(batch, found)
        unchecked = accept(
            self.name,
            findings=(_UNCHECKED,),
            members=(accept(NOT_CHECKED, findings=(_UNCHECKED,)),),
        )
        return [found.get(i, unchecked) for i in range(len(batch))]

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered about nodes, plus the number of calls, as plain JSON values.
        Members have their own state."""
        return {**self.memory.state_dict(), "calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`. Raises ValueError if the state is malformed."""
        with reading("SpotCheck"):
            calls = whole(state.get("calls", 0))
        self.memory.load_state_dict(state)
        # Never count backwards: under the same key, a batch sent again would be drawn as before.
        self._calls = max(self._calls, calls)

    def _drawn(
        self, batch: Sequence[Completion], places: Mapping[str | None, Sequence[int]]
    ) -> set[int]:
        # A revealed value belongs to one round, and anybody must be able to recompute the choice.
        self._calls += self._committed is None
        call = self._calls if self._committed is None else 0
        known = self.memory.of([node for node in places if node is not None])
        drawn = set[int]()
        for node, indices in places.items():
            share = self._share(known.get(node or "", Checks()) if node is not None else Checks())
            sent = [batch[i] for i in indices]
            digest = commitment(sent) if share < 1 else ""
            if self._committed is not None:
                promised = None if node is None else self._committed.pop(node, None)
                share = share if promised == digest else 1.0
            drawn |= {indices[k] for k in self._choice(f"{call} {digest}", len(sent), share)}
        return drawn

    def _choice(self, seed: str, sent: int, share: float) -> list[int]:
        """Indices to check among one node's completions."""
        count = checked_of(sent, share)
        if count == sent:
            return list(range(sent))
        lots = [
            blake2b(f"{seed} {place}".encode(), key=self._key, digest_size=16).digest()
            for place in range(sent)
        ]
        return sorted(range(sent), key=lots.__getitem__)[:count]

    def _share(self, checks: Checks) -> float:
        if checks.caught:
            return 1.0
        return self.newcomers if checks.clean < self.settled_after else self.share

    def _suspect(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether the verdicts on a node's sample give reason to check the rest."""
        at_will = self.author_can_abstain is not None
        return (
            any(v.rejected for v in verdicts)
            or any(v.abstained and at_will and v.cause not in _NOT_ONE_TEXT for v in verdicts)
            or all(v.abstained and v.cause is not Cause.NOT_APPLICABLE for v in verdicts)
        )

    def _checked(self, batch: Sequence[Completion], indices: Sequence[int]) -> dict[int, Verdict]:
        if not indices:
            return {}
        verdicts = supervised(self.member, [batch[i] for i in indices])
        under = [replace(v, verifier=self.name, members=(v,)) for v in verdicts]
        return dict(zip(indices, under, strict=True))

    def _remember(self, batch: Sequence[Completion], found: Mapping[int, Verdict]) -> None:
        clean: dict[str, int] = defaultdict(int)
        caught = set[str]()
        for i, verdict in found.items():
            node = batch[i].node
            # What someone other than the author can cause counts neither for nor against a node.
            if node is None or verdict.abstained or verdict.cause in BARRING_CAUSES:
                continue
            clean[node] += verdict.accepted
            if verdict.rejected:
                caught.add(node)
        if clean:
            self.memory.add(clean, frozenset(caught), self.settled_after)


def commitment(completions: Sequence[Completion]) -> str:
    """A digest that binds a node to its completions of a batch, in order: 64 hexadecimal digits.

    The digest covers everything that verifiers read, but not ``group`` and ``metadata``, which
    belong to the exchange.
    """
    whole_batch = blake2b(b"grpo-guard commitment 1\n", digest_size=32)
    for completion in completions:
        whole_batch.update(_content(completion))
    return whole_batch.hexdigest()


def _content(of: Completion) -> bytes:
    numbers = (of.round, of.slot, of.prompt_ids, of.completion_ids, of.sampler_logprobs, of.given)
    labels = (of.node, of.task, of.reference, of.finish_reason, of.text)
    parts = [ascii(labels).encode()]
    # Written separately: otherwise an image in the prompt would leave the ids uncommitted, so they
    # could be chosen once the draw is known.
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: ascii(numbers).encode(),
        lambda: prompt_bytes(of.prompt),
    )
    for written in ways:
        try:
            parts.append(written())
        except (ValueError, RecursionError):
            # An image, or a number too long to write. The commitment is weaker, but the choice is
            # just as unpredictable; raising would let the author force an abstention.
            parts.append(b"what has no bytes")
    content = blake2b(digest_size=32)
    for part in parts:
        content.update(len(part).to_bytes(8, "big") + part)
    return content.digest()


def _key(value: str) -> bytes:
    return blake2b(value.encode("utf-8", "surrogatepass")).digest()


def _long_enough(what: str, value: str) -> str:
    if not isinstance(value, str) or len(value) < _SHORTEST_VALUE:
        raise ValueError(
            f"{what}: expected {_SHORTEST_VALUE} characters or more that no node can guess"
        )
    return value
