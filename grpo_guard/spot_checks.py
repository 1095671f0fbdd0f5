"""Checking a sample: what a node sent is verified in part, by a choice that it could not foresee.

A choice binds nobody who knows it beforehand. Who can grind what:

* **A public coin that is known ahead** (`PublicCoin` without beacons, or a hash of what was sent
  and nothing else): each node computes which of its completions will be looked at, and poisons the
  others. Whoever sends last does so even where the hash is of what all have sent: it tries other
  texts until its m poisoned ones are left out, after about ``(1 - share) ** -m`` tries. It is not
  offered here.
* **The verifier's own key** (the default): the choice is a keyed hash over the node's commitment,
  a digest of all that it sent in this batch, in order, the place of a completion in it, and the
  number of the call. Without the key nobody can tell the choice from a lot, whatever he sends and
  whatever others send. Afterwards rejections say what was looked at, and no more of the next
  choice: what passed unseen and is sent again is drawn anew. The verifier must be trusted: it
  could spare a friend, and nobody would see it.
* **A value that is revealed later** (`SpotCheck.begin_round`): nodes publish their commitments,
  *then* a value appears that none of them chose or knew, and decides. Everybody can compute the
  choice again. Whoever knows the value before he commits grinds as above, and whoever can choose it
  afterwards spares whom he likes. So take one that nobody of the run controls (a public beacon of a
  time after the last commitment), or a hash of shares that all committed to; who reveals last and
  may stay silent has two choices, so silence has to cost.

What is not looked at is accepted, since the operator chose that risk, with a finding of a kind of
its own that metrics count (`NOT_CHECKED`). It is no evidence for a ledger. One rejection has all
that its node sent in the batch looked at, so poison of a caught node earns nothing in that batch
unless the verifier itself lets it pass; what it earned before is not taken back.
`grpo_guard.spot_odds` says how likely that is to happen.

An abstention is no rejection, so poison that makes a verifier abstain would never be caught, and
earn wherever it was not drawn. So the whole node is looked at as well where one drawn completion
made a verifier abstain that a text can make abstain (`author_can_abstain`), and where nothing drawn
had an answer: in an outage what was not drawn would be a silent reward. Neither is held against the
node in later batches, since a machine that fails looks the same.

Members see what is chosen and nothing else: a verifier that compares completions with each other
(`recurrence`, counted findings, a node's evidence together) has that much less to compare. Put
`SpotCheck` around what costs and the rest beside it with ``&``: under ``|`` and in a vote, what is
not looked at counts as accepted; ``~`` leaves it accepted.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.ensemble import AllOf
from grpo_guard.identity.envelope import prompt_bytes
from grpo_guard.nodes.checks import Checks, ChecksOfNodes
from grpo_guard.nodes.saved import reading, whole
from grpo_guard.nodes.store import NodeStore
from grpo_guard.p_values import smallest_p
from grpo_guard.supervise import supervised
from grpo_guard.verdict import (
    BARRING_CAUSES,
    NOT_CHECKED,
    SPOT_CHECKS,
    Cause,
    Finding,
    Verdict,
    accept,
)
from grpo_guard.verifier import CompletionVerifier, Composed

_UNCHECKED: Final = Finding(NOT_CHECKED, "not among the completions that were drawn for a check")
# What no one text brings about by itself, or is meant: it would have all looked at for nothing.
_NOT_ONE_TEXT: Final = (
    Cause.RATE_LIMITED,
    Cause.CIRCUIT_OPEN,
    Cause.BUDGET,
    Cause.NOT_APPLICABLE,
)
_SLACK: Final = 1e-9
_SHORTEST_VALUE: Final = 16


class SpotCheck(Composed):
    """Verifies a share of what each node sent, and all of it once a forgery is found.

    Of n completions of one node in a batch ``ceil(share * n)`` are drawn, at least one; all n where
    one of them is rejected, or dodges its check (see the module). A node is looked at more while it
    is new, and wholly after it was caught, until ``settled_after`` of its completions have been
    looked at and accepted. Completions without a node are one newcomer's.

    A name must be authenticated, or poison is sent under the names of settled nodes.

    Args:
        members: What verifies; of several all must accept.
        share: Of a settled node's completions, in (0, 1]; no node is looked at less.
        newcomers: Of a new node's, at least ``share``.
        settled_after: Accepted completions after which a node is settled, >= 1.
        key: Secret of the choice, of 16 characters or more, for runs that shall be repeatable.
            None: drawn, and known to this object alone. See the module for who could grind.
        store: Where it is remembered how checks went.

    Raises:
        ValueError: an argument is out of range.

    Examples:
        >>> guard = Guard(SpotCheck(LogProbBoundVerifier(...), share=0.1))
    """

    name = SPOT_CHECKS

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
        if not 0 < share <= 1:
            raise ValueError(f"share: expected a number in (0, 1], got {share!r}")
        if not 0 < newcomers <= 1:
            raise ValueError(f"newcomers: expected a number in (0, 1], got {newcomers!r}")
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
    def joins(self) -> bool:
        """Never with strangers' batches: a choice is of one batch, and what it finds is kept."""
        return False

    @property
    def compares_ids(self) -> bool:
        return False  # of those that are not drawn it compares nothing

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that its member can give."""
        return smallest_p(self.member)

    def begin_round(self, value: str, committed: Mapping[str, str]) -> None:
        """Choose by a value that was revealed after the nodes had committed, from now on.

        Whoever sent something else than it had committed to, or had committed to nothing, is
        looked at wholly. So a round is one batch: a commitment holds for the first that a node
        is in, or the same again would pass unseen where it did before.

        Args:
            value: Of 16 characters or more; unknown to every node until it had committed.
            committed: By node, what `commitment` gave it for its completions in order.

        Raises:
            ValueError: the value is shorter.
        """
        self._key, self._committed = _key(_long_enough("value", value)), dict(committed)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        places: dict[str | None, list[int]] = defaultdict(list)
        for i, completion in enumerate(batch):
            places[completion.node].append(i)
        drawn = self._drawn(batch, places)
        found = self._checked(batch, sorted(drawn))
        said: dict[str | None, list[Verdict]] = defaultdict(list)
        for i, verdict in found.items():
            said[batch[i].node].append(verdict)
        wholly = [node for node, verdicts in said.items() if self._suspect(verdicts)]
        rest = {i for node in wholly for i in places[node]} - drawn
        found |= self._checked(batch, sorted(rest))
        self._remember(batch, found)
        unchecked = accept(
            self.name,
            findings=(_UNCHECKED,),
            members=(accept(NOT_CHECKED, findings=(_UNCHECKED,)),),
        )
        return [found.get(i, unchecked) for i in range(len(batch))]

    def state_dict(self) -> dict[str, Any]:
        """What is remembered of nodes, and the number of calls, as plain JSON values; members have
        states of their own."""
        return {**self.memory.state_dict(), "calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: it is not of that form.
        """
        with reading("SpotCheck"):
            calls = whole(state.get("calls", 0))
        self.memory.load_state_dict(state)
        # Under the same key a batch that was sent before would be drawn as it was then.
        self._calls = max(self._calls, calls)

    def _drawn(
        self, batch: Sequence[Completion], places: Mapping[str | None, Sequence[int]]
    ) -> set[int]:
        # A revealed value is of one round, and everybody must be able to choose again.
        self._calls += self._committed is None
        call = self._calls if self._committed is None else 0
        known = self.memory.of([node for node in places if node is not None])
        drawn = set[int]()
        for node, indices in places.items():
            share = self._share(known.get(node or "", Checks()) if node is not None else Checks())
            sent = [batch[i] for i in indices]
            said = commitment(sent) if share < 1 else ""
            if self._committed is not None:
                promised = None if node is None else self._committed.pop(node, None)
                share = share if promised == said else 1.0
            drawn |= {indices[k] for k in self._choice(f"{call} {said}", len(sent), share)}
        return drawn

    def _choice(self, said: str, sent: int, share: float) -> list[int]:
        """Places that are looked at, of those of one node."""
        count = math.ceil(share * sent - _SLACK)
        if count >= sent:
            return list(range(sent))
        lots = [
            blake2b(f"{said} {place}".encode(), key=self._key, digest_size=16).digest()
            for place in range(sent)
        ]
        return sorted(range(sent), key=lots.__getitem__)[:count]

    def _share(self, checks: Checks) -> float:
        if checks.caught:
            return 1.0
        return self.newcomers if checks.clean < self.settled_after else self.share

    def _suspect(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether a node's sample says nothing good of the rest."""
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
            # What another than its author can bring about speaks neither for nor against it.
            if node is None or verdict.abstained or verdict.cause in BARRING_CAUSES:
                continue
            clean[node] += verdict.accepted
            if verdict.rejected:
                caught.add(node)
        if clean:
            self.memory.add(clean, frozenset(caught), self.settled_after)


def commitment(completions: Sequence[Completion]) -> str:
    """What binds a node to its completions of a batch, in this order: 64 hexadecimal digits.

    Of all that verifiers read; ``group`` and ``metadata`` are the exchange's.
    """
    whole_batch = blake2b(b"grpo-guard commitment 1\n", digest_size=32)
    for completion in completions:
        whole_batch.update(_content(completion))
    return whole_batch.hexdigest()


def _content(of: Completion) -> bytes:
    numbers = (of.round, of.slot, of.prompt_ids, of.completion_ids, of.sampler_logprobs, of.given)
    labels = (of.node, of.task, of.reference, of.finish_reason, of.text)
    parts = [ascii(labels).encode()]
    # Each by itself: beside an image, ids would not be bound, and chosen once the draw is known.
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: ascii(numbers).encode(),
        lambda: prompt_bytes(of.prompt),
    )
    for written in ways:
        try:
            parts.append(written())
        except (ValueError, RecursionError):
            # An image, or a number too long to write. The commitment is looser, and the choice as
            # unknown as ever; it must not raise, or its author could have it abstained on.
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
