"""Tell what a node says anew from what it repeats, such as the line that closes its answers."""

from collections import OrderedDict
from typing import Final

from grpo_guard.content.recurrence.words import END, words_of

_MOST: Final = 262_144
"""Maximum number of word triples remembered, over all nodes."""
_LEAST_NEW: Final = 0.25
"""A sentence is new if a larger share of its word triples is."""


class Novelty:
    """Remembers the word triples of each node's sentences. Not thread-safe.

    They are not saved: after a restart, each habit counts as new once more.
    """

    def __init__(self) -> None:
        self._known = OrderedDict[int, None]()

    def is_new(self, node: str, sentence: str) -> bool:
        """Whether a sentence differs enough from its node's earlier ones, which it joins.

        Numbers are no words, so that "The final answer is 18." repeats "The final answer is 4.". A
        sentence without words is always new.
        """
        words = [word for word in words_of(sentence) if word != END and not word.isdigit()]
        if not words:
            return True
        # Python's salted hash: no author can prepare a sentence that collides with another.
        triples = {hash((node, *words[i : i + 3])) for i in range(max(1, len(words) - 2))}
        new = sum(triple not in self._known for triple in triples)
        for triple in triples:
            self._known[triple] = None
            self._known.move_to_end(triple)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return new > _LEAST_NEW * len(triples)
