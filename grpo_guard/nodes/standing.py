"""Turn evidence into a state (clear, soft or hard), and decide when a node is released.

Evidence is measured as a multiple of the threshold: the chance that any honest node of the swarm
ever reaches 1 is at most alpha. At 1 a node is hard; at `SOFT` it is soft: watched, not punished. A
level that new evidence does not renew halves every ``half_life`` rounds, and a hard node is
released below `RELEASE`, so a node that was hacked once, or falsely accused, can return. A node
that carries on is accused again at its next rejections, because the evidence is still there.
"""

from dataclasses import dataclass
from enum import StrEnum

SOFT = 0.5
RELEASE = 0.5
FORGOTTEN = 0.25
# Levels are capped here: after at most three half-lives without new evidence a node is released.
MOST = 4.0


class State(StrEnum):
    """The state of a node."""

    CLEAR = "clear"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Mark:
    """The standing of one node. Raises ValueError if no ledger could have written these values; the
    file may be corrupt.

    Args:
        state: Current state, entered in round ``since``.
        level: Evidence-to-threshold ratio as of its last update, in round ``renewed``.
        renewed: Round in which the level was last updated, in the ledger's own numbering.
        since: Round in which the node entered the state, in the same numbering.
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
        """Return the level in round ``now``, after decay."""
        return float(self.level * 2.0 ** (-max(0, now - self.renewed) / half_life))


def updated(
    mark: Mark, evidence: float, *, rose: bool, now: int, half_life: float, most: State = State.HARD
) -> Mark:
    """Return the mark after one more round, ``now``; ``evidence`` is a multiple of the threshold.

    The level is renewed only if the round added evidence (``rose``). ``half_life`` is in rounds;
    ``most`` is `State.SOFT` if this kind of evidence never makes a node hard.
    """
    level, renewed = mark.level, mark.renewed
    if rose and evidence > mark.level_at(now, half_life):
        level, renewed = min(evidence, MOST), now
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
