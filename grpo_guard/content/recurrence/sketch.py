"""A node's feature counts in bounded memory: exact over a window of prompts, lossy before that.

The past uses lossy counting (Manku and Motwani, VLDB 2002) with the window as its bucket: a feature
that appears only once in a window, and not in the past, is forgotten, at most once per window. So
every count is at most ``lost`` too low, and `most` is never too low. Other nodes' counts are read
through `most` and a node's own through `count`, so that errors can only acquit.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

WINDOW: Final = 64
"""Number of prompts counted exactly."""
CAPACITY: Final = 20_000
"""Maximum number of past features kept for a node."""
MOST_OF_PROMPT: Final = 8_000
"""Number of features per prompt beyond which only features of other prompts are added."""
SETTLED: Final = 8
"""Minimum number of prompts for a meaningful rate."""
MOST_ANSWERS: Final = 64
"""Maximum number of answers to the same prompt that are counted separately."""
_SEEN: Final = 4_096
# Old evidence fades, so that a node that changes in mid-training is not shielded by its record.
_FADE_AT: Final = 1_024
_LATEST: Final = 4
_EXAMPLES, _EXAMPLE = 16, 20_000


class Sketch:
    """Counts of features over the distinct prompts of one node."""

    def __init__(self) -> None:
        # Per prompt: each feature with the lowest draw among the answers that show it, plus the
        # draws of the prompt's answers, ascending; if there are many, only the lowest are kept.
        self.window: dict[bytes, dict[str, int]] = {}
        self.draws: dict[bytes, list[int]] = {}
        self.recent: Counter[str] = Counter()
        # The window before this one, without features that appeared in it only once.
        self.before: dict[str, int] = {}
        self.before_prompts = 0
        # The number of answers counted for each prompt of that window, ascending.
        self.before_answers: list[int] = []
        self.past: Counter[str] = Counter()
        self.past_prompts = 0
        self.lost = 0
        self.prompts = 0
        self.examples: deque[str] = deque(maxlen=_EXAMPLES)
        self._seen: dict[bytes, None] = {}
        self._profiles: list[list[int]] | None = None

    @property
    def total(self) -> int:
        """Number of prompts covered by the counts."""
        return self.past_prompts + len(self.window)

    @property
    def full(self) -> bool:
        """Whether the next new prompt needs `roll` first."""
        return len(self.window) >= WINDOW

    def is_new(self, digest: bytes) -> bool:
        """Record a completion by its digest and return whether it is new; retries are not
        evidence."""
        if digest in self._seen:
            return False
        self._seen[digest] = None
        if len(self._seen) > _SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def add(self, prompt: bytes, features: set[str], text: str, draw: int = 0) -> None:
        """Count one completion; further answers to a prompt add only their new features.

        Args:
            prompt: Key of the prompt.
            features: Features of the completion.
            text: The completion.
            draw: The completion's pseudo-random draw. If only some answers to a prompt can count,
                those with the lowest draws do.
        """
        known = self.window.get(prompt)
        if known is None:
            self.window[prompt] = dict.fromkeys(features, draw)
            self.draws[prompt] = [draw]
            self.prompts += 1
            self.recent.update(features)
            self._profiles = None
        else:
            fresh = features - known.keys()
            for feature in features & known.keys():
                known[feature] = min(draw, known[feature])
            if len(known) >= MOST_OF_PROMPT:
                fresh &= self.recent.keys()
            known.update(dict.fromkeys(fresh, draw))
            self.recent.update(fresh)
            draws = self.draws[prompt]
            if draw not in draws:
                insort(draws, draw)
                del draws[MOST_ANSWERS:]
                self._profiles = None
        self.examples.append(text[:_EXAMPLE])

    def answers(self) -> list[int]:
        """Return the number of answers to each prompt in the window, ascending."""
        return sorted(map(len, self.draws.values()))

    def profiles(self) -> list[list[int]]:
        """Return the answers per prompt, ascending, for each stretch that `lately` could choose."""
        if self._profiles is None:
            window = self.answers()
            both = [sorted(window + self.before_answers)] if self.before_answers else []
            self._profiles = both if both and len(window) < SETTLED else [window, *both]
        return self._profiles

    def drawn(self, answers: Sequence[int]) -> Counter[str]:
        """Return the feature counts of `recent`, limited to a number of answers per prompt.

        Args:
            answers: Number of answers to keep for each prompt, in the same order as the method
                `answers`.
        """
        counts = Counter[str]()
        prompts = sorted(self.window, key=lambda prompt: len(self.draws[prompt]))
        for prompt, most in zip(prompts, answers, strict=True):
            shown, draws = self.window[prompt], self.draws[prompt]
            if most >= len(draws):
                counts.update(shown.keys())
            else:
                last = draws[most - 1]
                counts.update(feature for feature, draw in shown.items() if draw <= last)
        return counts

    def company(self, features: Iterable[str]) -> dict[str, list[str]]:
        """Map each feature to the others that most of its prompts in the window also show."""
        windows = list(self.window.values())
        shown = {f: sum(1 << k for k, w in enumerate(windows) if f in w) for f in features}
        return {
            f: [g for g, b in shown.items() if g != f and 2 * (a & b).bit_count() > a.bit_count()]
            for f, a in shown.items()
        }

    def latest(self) -> set[str]:
        """Return the features of the window's last prompts, which include any frequent feature."""
        return set().union(*list(self.window.values())[-_LATEST:])

    def repeated(self, counts: Counter[str] | None = None) -> dict[str, int]:
        """Return the counts of features that appear more than once in the window.

        Args:
            counts: Counts returned by `drawn`; None for `recent`.
        """
        return {f: n for f, n in (self.recent if counts is None else counts).items() if n > 1}

    def roll(
        self,
        repeated: dict[str, int],
        counts: Counter[str] | None = None,
        answers: list[int] | None = None,
    ) -> None:
        """Move the window into the past.

        Args:
            repeated: Counts returned by `repeated` for the window.
            counts: Counts returned by `drawn` for the window, if not all of its answers count.
            answers: Number of answers that count per prompt; None if all of them do.
        """
        past = self.past
        shown = self.recent if counts is None else counts
        once = [f for f in past.keys() & shown.keys() if f not in repeated]
        past.update(repeated)
        past.update(once)
        self.past_prompts += len(self.window)
        self.lost += 1
        self.before, self.before_prompts = repeated, len(self.window)
        self.before_answers = answers or self.answers()
        self.window, self.draws, self.recent = {}, {}, Counter()
        self._profiles = None
        if self.past_prompts >= _FADE_AT:
            self.past = Counter({f: n // 2 for f, n in past.items() if n > 1})
            # Halving rounds counts down by at most one more.
            self.past_prompts, self.lost = self.past_prompts // 2, self.lost // 2 + 1
        floor = 0
        while len(self.past) > CAPACITY:
            floor += 1
            kept = {f: n for f, n in self.past.items() if n > floor}
            if not kept:
                # All are equally rare, so any of them will do.
                kept = dict(list(self.past.items())[:CAPACITY])
            self.past = Counter(kept)
        self.lost += floor

    def lately(self, feature: str) -> tuple[int, int]:
        """Return how many of the latest prompts showed the feature, at most, and their total.

        Covers either the window alone or the window plus the previous one, whichever has the higher
        rate: a habit that all nodes have just acquired, as they do in training, must not look like
        one node's own just because the other nodes' older prompts lack it.
        """
        hits, size = self.recent.get(feature, 0), len(self.window)
        if not self.before_prompts:
            return hits, size
        both = hits + self.before.get(feature, 1), size + self.before_prompts
        alone = size >= SETTLED and hits * both[1] >= both[0] * size
        return (hits, size) if alone else both

    def count(self, feature: str) -> int:
        """Return a lower bound on the number of prompts that showed the feature."""
        return self.past.get(feature, 0) + self.recent.get(feature, 0)

    def most(self, feature: str) -> int:
        """Return an upper bound on the number of prompts that showed the feature."""
        shown = self.past.get(feature, 0) + self.recent.get(feature, 0) + self.lost
        return min(shown, self.past_prompts + len(self.window))
