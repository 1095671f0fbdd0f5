"""A node's record: its counts, the looks (tests) it has had so far, and its convictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpo_guard.content.recurrence.sketch import Sketch

MOST_CONVICTIONS: Final = 512
"""Maximum number of features a node can be convicted of; any more would hardly be specific to the
node."""
FIRST_LONG: Final = 128
"""Number of prompts after which a node's whole remembered past is tested as well."""


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
