"""The nodes' sketches side by side: who is compared with whom, when, and who is convicted of what.

Node i is convicted of a feature if its count is too high for `significance.log_tail` against more
than half of the other nodes together, those that show it least, and at least `RATIO` times the rate
of each of these. Leaving the others out is what stops Sybils from passing a phrase off as usual:
while fewer than half of the others share the phrase, it stays a find. The same rule keeps nodes
that leave out what everyone writes from making it look rare: one honest node among those compared
with has it, and the ratio fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from grpo_guard.content.recurrence.features import Reader, is_layout, kind_of
from grpo_guard.content.recurrence.phrases import Examples
from grpo_guard.content.recurrence.significance import log_cost, log_tail
from grpo_guard.content.recurrence.sketch import SETTLED, WINDOW, Sketch

RATIO: Final = 4.0
_LOOKS: Final = (8, 10, 13, 18, 28, 44)
_FEWEST: Final = 5
_STALE: Final = 2 * WINDOW
_FIRST_LONG, _LONG_GROWTH = 128, 1.3
_MOST_CONVICTIONS: Final = 512


@dataclass(frozen=True, slots=True)
class Conviction:
    """A feature that a node has been found to repeat and the others not.

    Args:
        feature: What was counted.
        kind: Kind of the findings that it leads to.
        phrase: The wording around it, as far as the node's completions agree.
        hits: Prompts of the node that showed it, of ``total``.
        other_hits: At most so many prompts of the nodes compared with did, of ``other_total``.
        p_value: Of the test, corrected for all tests, in [0, alpha].
    """

    feature: str
    kind: str
    phrase: str
    hits: int
    total: int
    other_hits: int
    other_total: int
    p_value: float


class Record:
    """A node's sketch, the looks that were taken at it, and what it is convicted of."""

    def __init__(self) -> None:
        self.sketch = Sketch()
        self.looks = 0
        self.opened = 0
        self.next_look = 0
        self.next_long = _FIRST_LONG
        self.convicted: dict[str, Conviction] = {}


class Swarm:
    """All nodes. Not safe to share between threads; the verifier holds a lock.

    Args:
        alpha: Chance that an honest node is ever convicted, if the null holds.
        min_share: Share of its prompts from which a node's habit is looked at.
        max_nodes: Nodes that are followed; beyond, the one with the fewest prompts is forgotten.
        reader: Knows which of the recurring features are telling.
    """

    def __init__(self, alpha: float, min_share: float, max_nodes: int, reader: Reader) -> None:
        self.alpha = alpha
        self.reader = reader
        self.min_share = min_share
        self.max_nodes = max_nodes
        self.records: dict[str, Record] = {}
        # The first prompts of every node, as if one node had sent them: a peer that takes a new
        # name for each completion has no record under any of them.
        self.newcomers = Record()
        self.clock = 0

    def record(self, node: str) -> Record:
        """The node's record, made where it is missing."""
        if node not in self.records:
            if len(self.records) >= self.max_nodes:
                least = min(self.records, key=lambda n: _weight(self.records[n]))
                del self.records[least]
            self.records[node] = Record()
        return self.records[node]

    def add(self, node: str, prompt: bytes, features: set[str], text: str) -> None:
        """Count one completion that has not been counted before."""
        record = self.record(node)
        self.clock += 1
        self._put(record, prompt, features, text)
        if record.sketch.prompts <= SETTLED:
            own = node.encode("utf-8", "surrogatepass") + prompt
            self._put(self.newcomers, own, features, text)

    def _put(self, record: Record, prompt: bytes, features: set[str], text: str) -> None:
        sketch = record.sketch
        if prompt not in sketch.window:
            # A slow node's window is put away unread once the others' latest words are no longer
            # of its time: habits drift in training, and an old one must not look like its own.
            if self.clock - record.opened > _STALE * len(self.records):
                self._roll(record, test=False)
            elif sketch.full:
                self._roll(record)
        if not sketch.window:
            record.opened = self.clock
        sketch.add(prompt, features, text)

    def look(self) -> None:
        """Test every node that has grown enough since it was last tested."""
        for record in (*self.records.values(), self.newcomers):
            size = len(record.sketch.window)
            if size >= _LOOKS[0] and size >= record.next_look:
                recent = record.sketch.recent
                # All of the window would take longer to look through than to read.
                latest = [(f, recent[f]) for f in record.sketch.latest()]
                if self._test(record, latest, size):
                    record.next_look = next((n for n in _LOOKS if n > size), WINDOW + 1)

    def convicted(self, node: str) -> dict[str, Conviction]:
        """What a completion of this node is rejected for."""
        record = self.records.get(node)
        if record is None or record.sketch.prompts < SETTLED:
            own = record.convicted if record is not None else {}
            return {**self.newcomers.convicted, **own}
        return record.convicted

    def shared(self) -> dict[str, dict[str, float]]:
        """Convicted phrases that two or more nodes show: phrase -> node -> share of its prompts."""
        features = {
            f: c.phrase
            for r in (*self.records.values(), self.newcomers)
            for f, c in r.convicted.items()
        }
        found = dict[str, dict[str, float]]()
        for feature, phrase in features.items():
            for node, record in self.records.items():
                share = record.sketch.count(feature) / max(1, record.sketch.total)
                if feature in record.convicted or share >= self.min_share:
                    shares = found.setdefault(phrase, {})
                    shares[node] = max(share, shares.get(node, 0.0))
        return {phrase: shares for phrase, shares in found.items() if len(shares) > 1}

    def _roll(self, record: Record, *, test: bool = True) -> None:
        sketch = record.sketch
        repeated = sketch.repeated()
        if test:
            # Both windows together, which show what is said less often.
            joint = Counter(repeated)
            joint.update(sketch.before)
            self._test(record, joint.items(), len(sketch.window) + sketch.before_prompts)
        sketch.roll(repeated)
        record.next_look = 0
        if sketch.prompts >= record.next_long:
            record.next_long = int(sketch.prompts * _LONG_GROWTH)
            self._test(record, sketch.past.items(), sketch.total, lately=False)

    def _test(
        self,
        record: Record,
        counts: Iterable[tuple[str, int]],
        total: int,
        *,
        lately: bool = True,
    ) -> bool:
        """One look; False where there is nobody to compare with yet.

        ``lately`` compares with what the others have said lately, else with all of it.
        """
        others = [
            r.sketch for r in self.records.values() if r is not record and r.sketch.total >= SETTLED
        ]
        if not others:
            return False
        record.looks += 1
        least = max(_FEWEST, self.min_share * total)
        candidates = [
            (f, n)
            for f, n in counts
            if n >= least and f not in record.convicted and not is_layout(f)
        ]
        examples = Examples(tuple(record.sketch.examples))
        for feature, hits in sorted(candidates, key=lambda item: -item[1]):
            if len(record.convicted) >= _MOST_CONVICTIONS:
                break
            found = self._tried(feature, (hits, total), others, record, lately)
            if found is None:
                continue
            phrase = examples.phrase(feature)
            if self.reader.telling(feature, phrase):
                record.convicted[feature] = Conviction(
                    feature, kind_of(feature), phrase, hits, total, found[1], found[2], found[0]
                )
        return True

    def _tried(
        self,
        feature: str,
        shown: tuple[int, int],
        others: Sequence[Sketch],
        record: Record,
        lately: bool,
    ) -> tuple[float, int, int] | None:
        """(p-value, hits and total of those compared with) if it convicts."""
        hits, total = shown
        counts = (o.lately(feature) if lately else (o.most(feature), o.total) for o in others)
        rates = sorted((most / size, most, size) for most, size in counts)
        features = len(record.sketch.recent) + len(record.sketch.past)
        features += sum(len(o.recent) + len(o.past) for o in others)
        # All others where all are without it, which is quicker; else the majority that is.
        for chosen in sorted({len(others), len(others) // 2 + 1}, reverse=True):
            if hits / total < RATIO * rates[chosen - 1][0]:
                continue
            other_hits = sum(rate[1] for rate in rates[:chosen])
            other_total = sum(rate[2] for rate in rates[:chosen])
            evidence = log_tail(hits, total, other_hits, other_total)
            evidence += log_cost(record.looks, features, len(others), chosen)
            if evidence <= log(self.alpha):
                return exp(evidence), other_hits, other_total
        return None


def lockstep(queues: dict[str, list[int]]) -> Iterator[list[int]]:
    """Places in a batch in small turns, all nodes in step.

    Otherwise a batch that is sorted by node would judge the first one before the others are known.
    """
    turn = 0
    while any(turn < len(places) for places in queues.values()):
        yield [i for places in queues.values() for i in places[turn : turn + 4]]
        turn += 4


def _weight(record: Record) -> tuple[bool, int]:
    return bool(record.convicted), record.sketch.prompts
