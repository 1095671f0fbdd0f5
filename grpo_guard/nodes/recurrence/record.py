"""What is kept of one node: its counts, the looks that were taken at it, its convictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpo_guard.nodes.recurrence.sketch import Sketch

MOST_CONVICTIONS: Final = 512
"""Features that one node may be convicted of; what it says beyond is hardly its own secret."""
FIRST_LONG: Final = 128
"""Prompts from which all that is remembered of a node is looked at."""


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
        shared: Whether the counts are of several nodes together.
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
    """A sketch, the looks that were taken at it, and what it is convicted of.

    Args:
        shared: Whether several nodes are counted in it.
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
