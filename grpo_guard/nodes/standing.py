"""What follows from evidence: clear, soft or hard, and when a node is released.

Evidence is measured in bars: 1 is what an honest node of the swarm ever reaches with probability
alpha. At 1 a node is hard, at `SOFT` it is soft: watched, not punished. A level that is not renewed
by new evidence halves every ``half_life`` rounds, and a hard node is released below `RELEASE`: a
node that is hacked once, or falsely accused, comes back. One that goes on is accused again at its
next rejections, since its evidence is still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SOFT = 0.5
RELEASE = 0.5
FORGOTTEN = 0.25
# More than this is not kept: after at most three half-lives without new evidence a node is out.
MOST = 4.0


class State(StrEnum):
    """How a node stands."""

    CLEAR = "clear"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Mark:
    """The standing of one node.

    Args:
        state: Since round ``since``.
        level: Evidence in bars when it was last renewed, in round ``renewed``.
        renewed: Counted in the ledger's own rounds.
        since: Round in which the state was taken.

    Raises:
        ValueError: what no ledger writes; a file that it comes from may be broken.
    """

    state: State = State.CLEAR
    level: float = 0.0
    renewed: int = 0
    since: int = 0

    def __post_init__(self) -> None:
        whole = isinstance(self.renewed, int) and isinstance(self.since, int)
        if not whole or not isinstance(self.level, int | float) or not 0 <= self.level <= MOST:
            raise ValueError(f"mark: expected a level in [0, {MOST}] and rounds, got {self!r:.200}")

    def level_at(self, now: int, half_life: float) -> float:
        """The level after decay."""
        return float(self.level * 2.0 ** (-max(0, now - self.renewed) / half_life))


def updated(
    mark: Mark, bars: float, *, rose: bool, now: int, half_life: float, most: State = State.HARD
) -> Mark:
    """The mark after one more round.

    Args:
        mark: Before it.
        bars: Evidence after it, in bars.
        rose: Whether the round added to the evidence; only then is the level renewed.
        now: The round.
        half_life: In rounds, > 0.
        most: `State.SOFT` where this kind of evidence never makes a node hard.
    """
    level, renewed = mark.level_at(now, half_life), mark.renewed
    if rose and bars > level:
        level, renewed = min(bars, MOST), now
    else:
        level, renewed = mark.level, mark.renewed
    current = Mark(mark.state, level, renewed, mark.since).level_at(now, half_life)
    state = _state(mark.state, current, renewed == now)
    if state is State.HARD and most is State.SOFT:
        state = State.SOFT
    return Mark(state, level, renewed, mark.since if state is mark.state else now)


def _state(before: State, level: float, fresh: bool) -> State:
    if (fresh and level >= 1.0) or (before is State.HARD and level >= RELEASE):
        return State.HARD
    if fresh and level >= SOFT:
        return State.SOFT
    return State.SOFT if before is not State.CLEAR and level >= FORGOTTEN else State.CLEAR
