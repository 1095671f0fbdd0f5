"""Compare the nodes' sketches: decide which nodes to compare, when, and which to convict.

Node i is convicted of a feature if two conditions hold for some majority of the other nodes, namely
those that show the feature least: i's count is too high for `fisher.log_tail` against these nodes
combined, and i's rate is at least `ratio` times the rate of each of them. Leaving the rest out
stops Sybils from passing a phrase off as common: as long as fewer than half of the others share the
phrase, it remains suspicious. The same rule stops nodes that avoid what everyone writes from making
it look rare: at least one honest node is among those compared, it shows the phrase, and the ratio
fails.

If there are many other nodes, `_MOST_OTHERS` are drawn by lot for each look (test). The draw does
not depend on what the nodes wrote, so the test need not pay for it, whereas correcting for the
choice of half of hundreds of nodes would cost all of its power.

**Null hypothesis** for node i and feature f: the prompts of i and of the nodes it is compared with
were drawn from a single population, so that, given how many of these prompts show f, every choice
of which ones do is equally likely. Then i's count is hypergeometric and the tail is exact (Fisher).
With shared prompts the counts vary less than that, which keeps the test conservative.

**Many tests.** Each node is tested again and again, each time for thousands of features. Look k
spends ``alpha / (k (k + 1))`` of the budget, which sums to alpha over any number of looks; this
share is divided by the number of features counted in any of the nodes (Bonferroni, at least
`FEATURES`) and by the number of ways to choose the others. So an honest node for which the null
holds is *ever* convicted with probability at most alpha.

**Many answers.** The test compares shares of prompts, and a prompt shows a phrase if any of its
answers does. So if two honest nodes have the same policy, a node with twelve answers per prompt
shows each phrase more often than a node with fewer. Therefore a node is tested on no more answers
than the peer with the fewest answers has (see `even`). The answers to keep are drawn with a secret
key, because the sender chooses their order. All answers of the others count, which can only acquit.
If all nodes send equally many answers, nothing is cut.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import comb, exp, log
from typing import Final

from grpo_guard.content.recurrence.features import Reader, is_layout, kind_of
from grpo_guard.content.recurrence.phrases import Examples
from grpo_guard.content.recurrence.seats import MOST_CONVICTIONS, Conviction, Record, Seats
from grpo_guard.content.recurrence.sentences import Peers, calculates, is_sentence
from grpo_guard.content.recurrence.sketch import WINDOW, Sketch
from grpo_guard.nodes.e_process import log_share, log_threshold
from grpo_guard.nodes.fisher import log_tail

RATIO: Final = 4.0
RATIO_OF_HABITS: Final = 8.0
"""The minimum ratio if models differ. Every model mentions what the question is about, even if some
do so rarely; a slogan is never written by the other nodes."""
_LOOKS: Final = (8, 10, 13, 18, 28, 44)
_FEWEST: Final = 5
_STALE: Final = 2 * WINDOW
_LONG_GROWTH: Final = 1.3
_MOST_OTHERS: Final = 31
# Minimum number of features assumed in the correction for many tests.
FEATURES: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Look:
    """A single test: the record, its number of prompts, and the nodes it is compared with."""

    record: Record
    total: int
    others: Sequence[Sketch]
    features: int
    lately: bool


class Swarm:
    """The records of all nodes. Not thread-safe; the verifier holds a lock.

    Args:
        alpha: Probability that an honest node is ever convicted, if the null hypothesis holds.
        min_share: Share of a node's prompts that must show a habit for it to be tested.
        max_nodes: Maximum number of nodes counted individually; see `seats`.
        reader: Decides which recurring features are telling.
    """

    def __init__(self, alpha: float, min_share: float, max_nodes: int, reader: Reader) -> None:
        self.alpha = alpha
        self.reader = reader
        self.ratio = RATIO if reader.phrases else RATIO_OF_HABITS
        self.min_share = min_share
        self.seats = Seats(max_nodes)
        self._lots = random.Random()

    def add(self, node: str, prompt: bytes, features: set[str], text: str, digest: bytes) -> None:
        """Count one completion, identified by ``digest``, that has not been counted before."""
        seats = self.seats
        draw = seats.draw(digest)
        record = seats.take(node)
        seats.clock += 1
        record.seen = seats.clock
        own = node.encode("utf-8", "surrogatepass") + prompt
        self._put(record, prompt if node in seats.records else own, features, text, draw)
        if not seats.settled(node):
            self._put(seats.newcomers, own, features, text, draw)

    def _put(self, record: Record, prompt: bytes, features: set[str], text: str, draw: int) -> None:
        sketch, clock = record.sketch, self.seats.clock
        if sketch.window and prompt not in sketch.window:
            # If the others' windows have moved on to a later time, a slow node's window is rolled
            # untested: habits drift in training, and an old one must not look like the node's own.
            if clock - record.opened > _STALE * (len(self.seats.records) + len(self.seats.pools)):
                self._roll(record, test=False)
            elif sketch.full:
                self._roll(record)
        if not sketch.window:
            record.opened = clock
        sketch.add(prompt, features, text, draw)

    def look(self) -> None:
        """Test every node that has grown enough since its last test."""
        for record in self.seats.all():
            size = len(record.sketch.window)
            if size >= _LOOKS[0] and size >= record.next_look:
                recent, _ = self._counted(record)
                # Going through the whole window would take longer than reading the texts.
                latest = [(f, recent[f]) for f in record.sketch.latest()]
                if self._test(record, latest, size):
                    record.next_look = next((n for n in _LOOKS if n > size), WINDOW + 1)

    def shared(self) -> dict[str, dict[str, float]]:
        """Map convicted phrases shown by several nodes to each node's share of prompts."""
        features = {f: c.phrase for r in self.seats.all() for f, c in r.convicted.items()}
        found = dict[str, dict[str, float]]()
        for feature, phrase in features.items():
            for node, record in self.seats.records.items():
                share = record.sketch.count(feature) / max(1, record.sketch.total)
                if feature in record.convicted or share >= self.min_share:
                    shares = found.setdefault(phrase, {})
                    shares[node] = max(share, shares.get(node, 0.0))
        return {phrase: shares for phrase, shares in found.items() if len(shares) > 1}

    def _counted(self, record: Record) -> tuple[Counter[str], list[int]]:
        """Return the feature counts over those answers in the window that count against the node,
        and the number of such answers per prompt."""
        sketch, others = record.sketch, self.seats.compared(record)
        mine = sketch.answers()
        # While there is nothing to compare with, assume one answer per prompt: any peer will have
        # at least that many.
        kept = even(mine, (r.sketch for r in others)) if others else [1] * len(mine)
        return (sketch.recent, mine) if kept in (None, mine) else (sketch.drawn(kept), kept)

    def _roll(self, record: Record, *, test: bool = True) -> None:
        sketch = record.sketch
        counts, answers = self._counted(record)
        repeated = sketch.repeated(counts)
        if test:
            # The two windows together reveal phrases that are used less often.
            joint, total = Counter(repeated), len(sketch.window)
            others = (r.sketch for r in self.seats.compared(record))
            if even(sketch.before_answers, others) is None:
                joint.update(sketch.before)
                total += sketch.before_prompts
            self._test(record, joint.items(), total)
        sketch.roll(repeated, counts, answers)
        record.next_look = 0
        if sketch.prompts >= record.next_long:
            record.next_long = int(sketch.prompts * _LONG_GROWTH)
            self._test(record, sketch.past.items(), sketch.total, lately=False)

    def _test(
        self, record: Record, counts: Iterable[tuple[str, int]], total: int, *, lately: bool = True
    ) -> bool:
        """Run one look at a record; return False if there is nothing to compare it with yet.

        ``lately`` compares with the others' latest prompts only, rather than with all of them.
        """
        compared = self.seats.compared(record)
        if not compared:
            return False
        if len(compared) > _MOST_OTHERS:
            compared = self._lots.sample(compared, _MOST_OTHERS)
        others = [r.sketch for r in compared]
        record.looks += 1
        features = sum(len(s.recent) + len(s.past) for s in (record.sketch, *others))
        look = _Look(record, total, others, features, lately)
        least = max(_FEWEST, self.min_share * total)
        candidates = [
            (f, n)
            for f, n in counts
            if n >= least
            and n >= self.reader.least_share(f) * total
            and f not in record.convicted
            and not is_layout(f)
        ]
        candidates.sort(key=lambda item: -item[1])
        self._judge(look, self._recurring(look, candidates))
        return True

    def _recurring(
        self, look: _Look, candidates: Iterable[tuple[str, int]]
    ) -> Iterator[Conviction]:
        """Yield the convictions that would follow if every recurring feature were telling."""
        examples = Examples(tuple(look.record.sketch.examples))
        for feature, hits in candidates:
            found = self._tried(feature, hits, look)
            if found is not None:
                yield Conviction(
                    feature, kind_of(feature), examples.phrase(feature), hits, look.total,
                    other_hits=found[1], other_total=found[2], p_value=found[0],
                    shared=look.record.shared,
                )  # fmt: skip

    def _judge(self, look: _Look, recurring: Iterable[Conviction]) -> None:
        convicted = look.record.convicted
        room = MOST_CONVICTIONS - len(convicted)
        vague, peers = dict[str, Conviction](), Peers([other.examples for other in look.others])
        for found in recurring:
            if room <= 0:
                break
            room -= 1
            own = _own_words(found, look.record.sketch)
            telling = self.reader.telling(found.feature, own)
            if telling and not (is_sentence(found.feature) and self._is_work(found, look, peers)):
                convicted[found.feature] = found
            else:
                vague[found.feature] = found
        # If a phrase is split across lines, sentences or markup, no single wording contains it, but
        # its words still occur in the same prompts.
        general = {
            f: self.reader.general(f, _own_words(found, look.record.sketch))
            for f, found in vague.items()
        }
        for feature, company in look.record.sketch.company(
            f for f in general if general[f]
        ).items():
            if any(len(general[feature] | general[other]) > 1 for other in company):
                convicted[feature] = vague[feature]

    def _is_work(self, found: Conviction, look: _Look, peers: Peers) -> bool:
        """Whether a sentence belongs to the task: peers write it too, or it is a calculation."""
        return peers.share(found.feature) or calculates(found.feature, look.record.sketch.examples)

    def _tried(self, feature: str, hits: int, look: _Look) -> tuple[float, int, int] | None:
        """Return (p-value, compared nodes' hits, compared nodes' total) if the test convicts."""
        total, others = look.total, look.others
        counts = (o.lately(feature) if look.lately else (o.most(feature), o.total) for o in others)
        rates = sorted((most / size, most, size) for most, size in counts)
        # First against all others, which convicts sooner if none of them shows the feature, then
        # against the majority that shows it least.
        for chosen in sorted({len(others), len(others) // 2 + 1}, reverse=True):
            if hits / total < self.ratio * rates[chosen - 1][0]:
                continue
            other_hits = sum(rate[1] for rate in rates[:chosen])
            other_total = sum(rate[2] for rate in rates[:chosen])
            evidence = log_tail(hits, total, other_hits, other_total)
            evidence += log_cost(look.record.looks, look.features, len(others), chosen)
            if evidence <= -log_threshold(self.alpha):
                return exp(evidence), other_hits, other_total
        return None


def _own_words(found: Conviction, sketch: Sketch) -> set[str]:
    """Return the words of the phrase that are the node's own: if the prompts say a word, it is
    counted less often than the phrase that holds it."""
    words = found.phrase.split(" ")
    return {found.feature, *(word for word in words if 2 * sketch.count(word) >= found.hits)}


def lockstep(queues: dict[str, list[int]]) -> Iterator[list[int]]:
    """Yield the indices of a batch in small turns, so that all nodes advance in step.

    Otherwise, in a batch sorted by node, the first node would be judged before the others are
    known.
    """
    turn, waiting = 0, list(queues.values())
    while waiting := [places for places in waiting if len(places) > turn]:
        yield [i for places in waiting for i in places[turn : turn + 4]]
        turn += 4


def even(mine: Sequence[int], others: Iterable[Sketch]) -> list[int] | None:
    """Return how many answers to each prompt count, or None if all of them do.

    The node's prompts and a peer's are each sorted by number of answers, and every prompt of the
    node is cut to the number of its counterpart.

    Args:
        mine: Number of answers to each of the node's prompts, ascending.
        others: Sketches of all nodes that the node can be compared with.
    """
    kept, size = list(mine), len(mine)
    for other in others:
        for theirs in other.profiles():
            if kept and theirs[0] < kept[-1]:
                kept = [min(n, theirs[k * len(theirs) // size]) for k, n in enumerate(kept)]
    return None if kept == list(mine) else kept


def log_cost(look: int, features: int, others: int, chosen: int) -> float:
    """Return the amount to add to a log p-value to correct for all other tests, past and future.

    Args:
        look: Number of this look at the node, starting at 1.
        features: Number of features counted in any of the nodes.
        others: Number of nodes to compare with.
        chosen: Number of these nodes that are compared: all of them in one test, the majority in
            another.
    """
    choices = 2 * comb(others, chosen)
    return log(max(features, FEATURES)) + log(choices) - log_share(look - 1)
