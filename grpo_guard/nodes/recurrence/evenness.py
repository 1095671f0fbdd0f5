"""How many of a node's answers count, where it sends more per prompt than the others.

The test compares shares of prompts, and a prompt shows a phrase if any of its answers does: of two
honest nodes with one policy, the one with twelve answers per prompt shows each phrase more often.
So no more answers count against a node than the peer with the fewest has: the node's prompts and
the peer's are put in order of their answers, and each is cut to its counterpart. Which answers stay
is drawn by a secret, since the sender chooses what comes first. Of the others all answers count,
which can only acquit. Where all send alike, nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_guard.nodes.recurrence.sketch import Sketch


def even(mine: Sequence[int], others: Iterable[Sketch]) -> list[int] | None:
    """How many answers of each prompt count; None = all of them.

    Args:
        mine: Answers of the node's prompts, the fewest first.
        others: All whom the node may be compared with.
    """
    kept, size = list(mine), len(mine)
    for other in others:
        for theirs in other.profiles():
            if kept and theirs[0] < kept[-1]:
                kept = [min(n, theirs[k * len(theirs) // size]) for k, n in enumerate(kept)]
    return None if kept == list(mine) else kept
