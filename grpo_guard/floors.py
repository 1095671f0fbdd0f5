"""How high a reward of "zero" may be: never above the lowest beside it.

Where wrong answers get -1, a veto that leaves 0 is a gain: in its group the vetoed completion is
better than honest work, and GRPO reinforces it. One low reward is enough, and a sender can bring it
along in a second completion. So what is vetoed gets at most the lowest reward of its group, vetoed
ones included; where none is negative that is 0, as in the paper. The group is all that answers the
prompt: under a label of its own a vetoed completion would be measured by what its sender chose.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Hashable, Sequence

# Of completions that come alone, as trainers show them that call once per completion.
REMEMBERED = 1024


class Floors:
    """Lowers what a veto left; remembers the last rewards, for completions without their group."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()

    def lower(
        self,
        rewards: Sequence[float | None],
        vetoed: Sequence[bool],
        groups: Sequence[Hashable] | None = None,
    ) -> list[float | None]:
        """The rewards, those of vetoed completions at most their group's lowest.

        Args:
            rewards: After the veto, which left 0 at most; None = not in the group.
            vetoed: Which of them a veto left.
            groups: Of each completion; None = they are one group. One that is alone in its group
                is taken for one of the last `REMEMBERED`.
        """
        groups = [None] * len(rewards) if groups is None else groups
        lowest: dict[Hashable, float] = {}
        sizes: dict[Hashable, int] = {}
        for reward, group in zip(rewards, groups, strict=True):
            sizes[group] = sizes.get(group, 0) + 1
            if reward is not None and math.isfinite(reward):
                lowest[group] = min(reward, lowest.get(group, 0.0))
        with self._lock:
            self._last.extend(lowest.values())
            alone = min(self._last, default=0.0) if 1 in sizes.values() and any(vetoed) else 0.0
        return [
            min(reward, alone if sizes[group] == 1 else lowest.get(group, 0.0))
            if veto and reward is not None
            else reward
            for reward, veto, group in zip(rewards, vetoed, groups, strict=True)
        ]

    def __reduce__(self) -> tuple[type[Floors], tuple[()]]:
        return (Floors, ())  # a worker starts with a memory of its own, and its own lock
