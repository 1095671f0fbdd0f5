"""Assign each node a record: one of its own, or one shared with other nodes.

Names cost nothing, so memory must not grow with them, and a flood of names must not evict nodes
that are already known. So a node keeps its record as long as it keeps sending. When all records are
taken, a new name is counted in a *pool*, a record shared with some other names. The pool is chosen
by a secret, so no sender can choose which names it is counted with. A conviction of a pool applies
to all of its nodes, which costs them only those completions that show the convicted phrase.

A record holds counts, the looks (tests) at them so far, and convictions.
"""

import logging
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from grpo_guard.content.recurrence.sketch import SETTLED, WINDOW, Sketch

MOST_CONVICTIONS: Final = 512
"""Maximum number of features a node can be convicted of; any more would hardly be specific to the
node."""
FIRST_LONG: Final = 128
"""Number of prompts after which a node's whole remembered past is tested as well."""

FRESH: Final = WINDOW
"""Number of prompts up to which the newcomers' convictions hold for a node. While its names are
among those that it is compared with, a sender who changes names is not found under any of them."""


@dataclass(frozen=True, slots=True)
class Conviction:
    """A feature that one node was found to repeat while the other nodes do not.

    Args:
        feature: The feature that was counted.
        kind: Kind of the findings that the conviction leads to.
        phrase: The wording around the feature that the node's completions have in common.
        hits: Number of prompts, out of the node's ``total``, that showed the feature.
        other_hits: Upper bound on the number of prompts, out of the compared nodes'
            ``other_total``, that showed the feature.
        p_value: p-value of the test, corrected for all tests, in [0, alpha].
        shared: Whether the counts cover several nodes together.
    """

    feature: str
    kind: str
    phrase: str
    hits: int
    total: int
    other_hits: int
    other_total: int
    p_value: float
    shared: bool


class Record:
    """The counts of a node, the looks (tests) at them so far, and the node's convictions.

    Args:
        shared: Whether the record counts several nodes together.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.sketch = Sketch()
        self.looks = 0
        self.opened = 0
        self.next_look = 0
        self.next_long = FIRST_LONG
        self.seen = 0
        self.convicted: dict[str, Conviction] = {}


# A record is given away once its node has sent nothing while others sent this many completions per
# known name, and at least this many in all. If it were given away sooner, a swarm with more nodes
# than records would keep reassigning records before any node is known.
_PATIENCE, _LEAST_PATIENCE = 8, 1_024
_NAMES: Final = 16
_SALT: Final = 16

logger = logging.getLogger("grpo_guard")


class Seats:
    """The records of all nodes, and the pools.

    Args:
        max_nodes: Number of records that hold a single node. There are as many pools in addition.
    """

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.records: dict[str, Record] = {}
        self.pools: dict[int, Record] = {}
        # The first prompts of every node, as if one node had sent them. This catches a peer that
        # takes a new name for each completion and so never has a record under any of its names.
        self.newcomers = Record(shared=True)
        self.clock = 0
        self.salt = secrets.token_bytes(_SALT)
        self._pooled: dict[bytes, int] = {}
        self._warned = False

    def take(self, node: str) -> Record:
        """Return the record in which the node is counted, creating it if necessary."""
        if node in self.records:
            return self.records[node]
        if len(self.records) < self.max_nodes or self._free():
            self.records[node] = record = Record()
            record.seen = self.clock
            return record
        if not self._warned:
            self._warned = True
            logger.warning(
                "recurrence: more than max_nodes=%d nodes: further ones are counted in %d shared "
                "records, where a phrase is found later or not at all. Raise max_nodes.",
                self.max_nodes,
                self.max_nodes,
            )
        return self.pools.setdefault(self._pool(node), Record(shared=True))

    def settled(self, node: str) -> bool:
        """Count a new completion of the node; return whether the node is past its first prompts."""
        if node in self.records:
            return self.records[node].sketch.prompts > SETTLED
        name = self._name(node)
        count = self._pooled.pop(name, 0) + 1
        self._pooled[name] = count
        if len(self._pooled) > _NAMES * self.max_nodes:
            del self._pooled[next(iter(self._pooled))]
        return count > SETTLED

    def draw(self, digest: bytes) -> int:
        """Return a completion's draw: a pseudo-random number beyond its sender's control."""
        return int.from_bytes(blake2b(digest, key=self.salt, digest_size=7).digest())

    def fresh(self, node: str) -> bool:
        """Whether the node is new enough for the newcomers' convictions to hold for it."""
        record = self.records.get(node)
        sent = self._pooled.get(self._name(node), 0) if record is None else record.sketch.prompts
        return sent < FRESH

    def convicted(self, node: str, *, fresh: bool) -> dict[str, Conviction]:
        """Return the convictions, by feature, for which this node's completions are rejected.

        Args:
            node: The node's name.
            fresh: Whether the node was `fresh` before it sent these completions.
        """
        record = self.records.get(node) or self.pools.get(self._pool(node))
        own = record.convicted if record is not None else {}
        return {**self.newcomers.convicted, **own} if fresh else own

    def all(self) -> list[Record]:
        """Return all records, including pools and newcomers."""
        return [*self.records.values(), *self.pools.values(), self.newcomers]

    def compared(self, record: Record) -> list[Record]:
        """Return the records that ``record`` can be compared with.

        These are the records of nodes that are still sending. Silent nodes and pools are added only
        if fewer than two such nodes remain; otherwise an attacker who invents names would get as
        many votes as there are pools.
        """
        own = [r for r in self.records.values() if _speaks(r, record)]
        active = [r for r in own if not self._idle(r)]
        if len(active) >= 2:
            return active
        return own + [r for r in self.pools.values() if _speaks(r, record)]

    def _idle(self, record: Record) -> bool:
        names = len(self.records) + len(self._pooled)
        return self.clock - record.seen > max(_LEAST_PATIENCE, _PATIENCE * names)

    def _free(self) -> bool:
        """Free the record of a node that has long been silent; return whether one was freed."""
        idle = [node for node, record in self.records.items() if self._idle(record)]
        if idle:
            del self.records[min(idle, key=lambda n: _weight(self.records[n]))]
        return bool(idle)

    def _pool(self, node: str) -> int:
        return int.from_bytes(self._name(node)) % self.max_nodes

    def _name(self, node: str) -> bytes:
        data = node.encode("utf-8", "surrogatepass")
        return blake2b(data, key=self.salt, digest_size=8).digest()


def _speaks(record: Record, other: Record) -> bool:
    return record is not other and record.sketch.total >= SETTLED


def _weight(record: Record) -> tuple[bool, int]:
    return bool(record.convicted), record.sketch.prompts
