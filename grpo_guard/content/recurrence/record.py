"""What is kept about one node: its counts, its looks (tests) so far, and its convictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpo_guard.content.recurrence.sketch import Sketch

MOST_CONVICTIONS: Final = 512
"""Most features that one node may be convicted of; any more would hardly be specific to it."""
FIRST_LONG: Final = 128
"""Prompts after which a node's whole remembered past is tested as well."""


@dataclass(frozen=True, slots=True)
class Conviction:
    """A feature that one node was found to repeat and the others do not.

    Args:
        feature: What was counted.
        kind: Kind of the findings that it leads to.
        phrase: The wording around the feature on which the node's completions agree.
        hits: Prompts, out of the node's ``total``, that showed the feature.
        other_hits: Upper bound on the prompts, out of the compared nodes' ``other_total``, that
            showed it.
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
    """A sketch, the looks at it so far, and its convictions.

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
