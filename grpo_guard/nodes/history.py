"""The remembered rounds as a matrix: which nodes worked in which round, and their counts.

With a hundred thousand nodes and hundreds of rounds, a mapping from names to counts would take a
hundred bytes per node and round. Few distinct counts occur, so a cell holds a two-byte code for its
counts and a bit that marks whether there was work.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grpo_guard.nodes.bets import Tally

MOST_LOOKED_AT: Final = 4096
"""Maximum number of candidates examined to find a node's peers; if there are more, this many are
drawn by lot."""
_NOTHING: Final = Tally(0, 0, 0)
_WORD: Final = 64
_MOST_TALLIES: Final = 2**18
_FIRST_LOOK: Final = 256
_SET_BITS: Final = np.array([n.bit_count() for n in range(256)], dtype=np.uint8)

Ints = NDArray[np.int64]


class History:
    """The last ``rounds`` rounds of a swarm. Names without a remembered round take no memory. At
    most ``drawn`` names are drawn as a node's peers, including the node's own name, by lots seeded
    with ``salt``."""

    def __init__(self, rounds: int, drawn: int, salt: bytes) -> None:
        self.size = rounds
        self._drawn = drawn
        self._salt = salt
        self._column: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        # One row per name: the codes of its rounds, by number modulo `size`; then, as bits, the
        # rounds in which it worked.
        self._codes: NDArray[Any] = np.zeros((0, rounds), dtype=np.uint16)
        self._bits = np.zeros((0, -(-rounds // _WORD)), dtype=np.uint64)
        self._lots = np.zeros(0, dtype=np.uint64)
        self._worked = np.zeros(0, dtype=np.int64)
        self._rejected = np.zeros(0, dtype=np.int64)
        self._tallies = [_NOTHING]
        self._code_of = {_NOTHING: 0}
        self._held = np.zeros(1, dtype=bool)
        # The rows of the names in each round in which few worked, and how many worked in each.
        self._few: dict[int, Ints] = {}
        self._count = np.zeros(rounds, dtype=np.int64)
        self._pools: dict[int, tuple[Ints, int]] = {}
        self._by_lot: Ints | None = None
        self._found: dict[bytes, tuple[Ints, int]] = {}

    @property
    def rejected_names(self) -> int:
        """Number of nodes with at least one counted rejection in the rounds still in memory."""
        return int(np.count_nonzero(self._rejected))

    def add(self, number: int, tallies: Mapping[str, Tally]) -> None:
        """Add a round; if ``size`` rounds are stored, `forget` the oldest first."""
        at = number % self.size
        columns = np.fromiter(map(self._place, tallies), dtype=np.int64, count=len(tallies))
        codes = np.fromiter(map(self._code, tallies.values()), np.int64, count=len(tallies))
        if len(self._tallies) > np.iinfo(self._codes.dtype).max:
            self._codes = self._codes.astype(np.uint32)
        self._codes[columns, at] = codes
        self._bits[columns, at // _WORD] |= _bit(at)
        self._worked[columns] += 1
        self._rejected[columns] += self._holds()[codes]
        self._count[at] = len(columns)
        if len(columns) <= MOST_LOOKED_AT:
            self._few[at] = columns
        self._changed()

    def forget(self, number: int) -> None:
        """Drop a remembered round."""
        at = number % self.size
        columns = np.flatnonzero(self._codes[:, at])
        self._rejected[columns] -= self._holds()[self._codes[columns, at]]
        self._worked[columns] -= 1
        self._codes[columns, at] = 0
        self._bits[:, at // _WORD] &= ~_bit(at)
        self._count[at] = 0
        self._few.pop(at, None)
        for column in columns[self._worked[columns] == 0].tolist():
            del self._column[self._names[column]]
            self._names[column] = ""
            self._free.append(column)
        if len(self._tallies) > _MOST_TALLIES:
            self._fewer_tallies()
        self._changed()

    def is_rejected(self, name: str) -> bool:
        """Whether a rejection in a remembered round is held against this name."""
        column = self._column.get(name)
        return column is not None and bool(self._rejected[column])

    def tally(self, name: str, number: int) -> Tally:
        """Return the counts of one name in one remembered round; zeros if it did no work."""
        column = self._column.get(name)
        if column is None:
            return _NOTHING
        return self._tallies[int(self._codes[column, number % self.size])]

    def rows(
        self, name: str, peers: Sequence[str], numbers: range
    ) -> tuple[Ints, Ints, list[Tally]]:
        """Return the rounds among ``numbers`` in which a name sent work, with the counts of the
        name and its peers: the numbers of these rounds, [K]; codes, [1 + peers, K], the name's own
        first; and the tallies that the codes index."""
        at = np.arange(numbers.start, numbers.stop) % self.size
        mine = self._codes[self._column[name], at]
        worked = np.flatnonzero(mine)
        codes = np.zeros((1 + len(peers), len(worked)), dtype=np.int64)
        codes[0] = mine[worked]
        columns = [self._column.get(peer, -1) for peer in peers]
        there = [k for k, column in enumerate(columns) if column >= 0]
        if there:
            chosen = np.array([columns[k] for k in there])
            codes[1:][there] = self._codes[chosen[:, None], at[worked][None, :]]
        return worked + numbers.start, codes, self._tallies

    def met(self, name: str) -> tuple[list[str], int]:
        """Draw at most ``drawn`` names with work in at least half of this name's rounds, and count
        all such names. Both results include the name itself, unless it was not examined.

        If there are more than `MOST_LOOKED_AT` candidates, only that many, drawn by lot, are
        examined. The count then covers all candidates, so it is never too low.
        """
        bits = self._bits[self._column[name]]
        key = bits.tobytes()
        if key not in self._found:
            self._found[key] = self._met(bits)
        columns, count = self._found[key]
        return [self._names[column] for column in columns], count

    def _met(self, bits: NDArray[np.uint64]) -> tuple[Ints, int]:
        half = (int(_ones(bits[None])[0]) + 1) // 2
        pool, count = self._pool(half)
        exact = count <= MOST_LOOKED_AT
        if not exact:
            # A recent name: the names in its few rounds are fewer and include all matches.
            at = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            if self._count[at].sum() <= MOST_LOOKED_AT:
                pool = np.unique(np.concatenate([self._few[a] for a in at.tolist()]))
                pool, exact = pool[np.argsort(self._lots[pool])], True
        # With many candidates the first few usually suffice; an exact count needs all of them.
        for looked_at in (len(pool),) if exact else (_FIRST_LOOK, len(pool)):
            found = pool[:looked_at]
            found = found[_ones(self._bits[found] & bits) >= half]
            if len(found) >= self._drawn:
                break
        return found[: self._drawn].copy(), len(found) if exact else count

    def _pool(self, rounds: int) -> tuple[Ints, int]:
        """Return the first names by lot with work in at least ``rounds`` rounds, and the number of
        all such names."""
        if rounds not in self._pools:
            if self._by_lot is None:
                alive = np.flatnonzero(self._worked)
                self._by_lot = alive[np.argsort(self._lots[alive])]
            often = self._by_lot[self._worked[self._by_lot] >= rounds]
            self._pools[rounds] = often[:MOST_LOOKED_AT], len(often)
        return self._pools[rounds]

    def _changed(self) -> None:
        self._by_lot = None
        self._pools.clear()
        self._found.clear()

    def _place(self, name: str) -> int:
        """Return the row of a name, adding a row for a new name."""
        column = self._column.get(name)
        if column is None:
            if not self._free:
                self._grow()
            column = self._column[name] = self._free.pop()
            self._names[column] = name
            data = name.encode("utf-8", "surrogatepass")
            drawn = blake2b(data, key=self._salt, digest_size=8).digest()
            self._lots[column] = int.from_bytes(drawn, "big")
        return column

    def _grow(self) -> None:
        before = len(self._names)
        more = max(64, before // 2)
        for attribute in ("_codes", "_bits", "_lots", "_worked", "_rejected"):
            array = getattr(self, attribute)
            grown = np.zeros((before + more, *array.shape[1:]), dtype=array.dtype)
            grown[:before] = array
            setattr(self, attribute, grown)
        self._names += [""] * more
        self._free = list(range(before + more - 1, before - 1, -1))

    def _code(self, tally: Tally) -> int:
        code = self._code_of.get(tally)
        if code is None:
            code = self._code_of[tally] = len(self._tallies)
            self._tallies.append(tally)
        return code

    def _holds(self) -> NDArray[np.bool_]:
        """Whether the counts behind each code include a held rejection."""
        if len(self._held) < len(self._tallies):
            new = [tally.held > 0 for tally in self._tallies[len(self._held) :]]
            self._held = np.concatenate([self._held, np.array(new, dtype=bool)])
        return self._held

    def _fewer_tallies(self) -> None:
        """Forget counts that are no longer used by any remembered round."""
        used = np.unique(self._codes)
        used = used if used[0] == 0 else np.concatenate([[0], used])
        self._codes = np.searchsorted(used, self._codes).astype(self._codes.dtype)
        self._tallies = [self._tallies[code] for code in used.tolist()]
        self._code_of = {tally: code for code, tally in enumerate(self._tallies)}
        self._held = self._held[used]


def _bit(at: int) -> np.uint64:
    return np.uint64(1 << at % _WORD)


def _ones(words: NDArray[np.uint64]) -> Ints:
    """Count the set bits of each row; from shape [rows, words] to [rows]."""
    if hasattr(np, "bitwise_count"):  # from NumPy 2 on
        return np.asarray(np.bitwise_count(words).sum(axis=-1, dtype=np.int64))
    return np.asarray(_SET_BITS[words.view(np.uint8)].sum(axis=-1, dtype=np.int64))
