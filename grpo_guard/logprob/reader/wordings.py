"""Remember how each node words its sentences, to tell its habits from what it says anew."""

from collections import OrderedDict
from typing import Final

from grpo_guard.content.recurrence.words import END, words_of

_MOST: Final = 262_144  # word triples remembered, of all nodes together: about 30 MB


class Wordings:
    """Remembers the word triples in each node's sentences. Not thread-safe."""

    def __init__(self) -> None:
        self._known = OrderedDict[int, None]()

    def is_new(self, node: str, sentence: str) -> bool:
        """Whether more than a quarter of a sentence's word triples are new for the node, which are
        remembered from then on.

        Numbers are no words, so that "The final answer is 18." repeats "The final answer is 4.". A
        sentence without words is always new.
        """
        words = [word for word in words_of(sentence) if word != END and not word.isdigit()]
        if not words:
            return True
        triples = {hash((node, *words[i : i + 3])) for i in range(max(1, len(words) - 2))}
        fresh = sum(triple not in self._known for triple in triples)
        for triple in triples:
            self._known[triple] = None
            self._known.move_to_end(triple)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return 4 * fresh > len(triples)
