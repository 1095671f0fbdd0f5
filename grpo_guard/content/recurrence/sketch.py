"""What one node has said, in bounded memory: exact over a window of prompts, lossy before that.

The past is lossy counting (Manku and Motwani, VLDB 2002) with the window as its bucket: a feature
that a window shows once only, and that the past does not hold, is forgotten and may be forgotten
once per window. So every count is at most ``lost`` too low, and `most` is never too low; others'
counts are read through `most` and a node's own through `count`, and errors acquit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

WINDOW: Final = 64
"""Prompts that are counted exactly."""
CAPACITY: Final = 20_000
"""Features of the past that a node may take up."""
MOST_OF_PROMPT: Final = 8_000
"""Features of one prompt from which on only those count that other prompts have shown as well."""
SETTLED: Final = 8
"""Prompts from which a rate is one."""
_SEEN: Final = 4_096
# Older evidence fades, so that a node which changes in mid-training is not shielded by its record.
_FADE_AT: Final = 1_024
_LATEST: Final = 4
_EXAMPLES, _EXAMPLE = 16, 20_000


class Sketch:
    """Counts of features over the distinct prompts of one node."""

    def __init__(self) -> None:
        self.window: dict[bytes, set[str]] = {}
        self.recent: Counter[str] = Counter()
        # The window before this one, without what it showed once.
        self.before: dict[str, int] = {}
        self.before_prompts = 0
        self.past: Counter[str] = Counter()
        self.past_prompts = 0
        self.lost = 0
        self.prompts = 0
        self.examples: deque[str] = deque(maxlen=_EXAMPLES)
        self._seen: dict[bytes, None] = {}

    @property
    def total(self) -> int:
        """Prompts that the counts speak of."""
        return self.past_prompts + len(self.window)

    @property
    def full(self) -> bool:
        """Whether the next new prompt would need `roll` first."""
        return len(self.window) >= WINDOW

    def is_new(self, digest: bytes) -> bool:
        """Whether this very completion has not been counted yet; a retry is not evidence."""
        if digest in self._seen:
            return False
        self._seen[digest] = None
        if len(self._seen) > _SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def add(self, prompt: bytes, features: set[str], text: str) -> None:
        """Count one completion; a further one of a prompt in the window adds what is new in it."""
        known = self.window.get(prompt)
        if known is None:
            self.window[prompt] = features
            self.prompts += 1
            self.recent.update(features)
        else:
            fresh = features - known
            if len(known) >= MOST_OF_PROMPT:
                fresh &= self.recent.keys()
            self.window[prompt] = known | fresh
            self.recent.update(fresh)
        self.examples.append(text[:_EXAMPLE])

    def company(self, features: Iterable[str]) -> dict[str, list[str]]:
        """For each, the others that stand in most of the window's prompts that show it."""
        windows = list(self.window.values())
        shown = {f: sum(1 << k for k, w in enumerate(windows) if f in w) for f in features}
        return {
            f: [g for g, b in shown.items() if g != f and 2 * (a & b).bit_count() > a.bit_count()]
            for f, a in shown.items()
        }

    def latest(self) -> set[str]:
        """Features of the window's last prompts: what is in most prompts is in one of these."""
        return set().union(*list(self.window.values())[-_LATEST:])

    def repeated(self) -> dict[str, int]:
        """Counts of what the window shows more than once."""
        return {f: n for f, n in self.recent.items() if n > 1}

    def roll(self, repeated: dict[str, int]) -> None:
        """Move the window into the past; ``repeated`` is what `repeated` says of it."""
        past = self.past
        once = [f for f in past.keys() & self.recent.keys() if f not in repeated]
        past.update(repeated)
        past.update(once)
        self.past_prompts += len(self.window)
        self.lost += 1
        self.before, self.before_prompts = repeated, len(self.window)
        self.window, self.recent = {}, Counter()
        if self.past_prompts >= _FADE_AT:
            self.past = Counter({f: n // 2 for f, n in past.items() if n > 1})
            # Halving rounds down, by at most one.
            self.past_prompts, self.lost = self.past_prompts // 2, self.lost // 2 + 1
        floor = 0
        while len(self.past) > CAPACITY:
            floor += 1
            kept = {f: n for f, n in self.past.items() if n > floor}
            if not kept:
                # All are equally rare: any part of them is as good as another.
                kept = dict(list(self.past.items())[:CAPACITY])
            self.past = Counter(kept)
        self.lost += floor

    def lately(self, feature: str) -> tuple[int, int]:
        """(prompts that may have shown the feature at most, prompts), lately.

        Of the window alone and the window with the one before it, the one with the higher rate: a
        habit that all nodes have just taken up, as they do in training, must not look like one
        node's because the others' older prompts are without it.
        """
        hits, size = self.recent.get(feature, 0), len(self.window)
        if not self.before_prompts:
            return hits, size
        both = hits + self.before.get(feature, 1), size + self.before_prompts
        alone = size >= SETTLED and hits * both[1] >= both[0] * size
        return (hits, size) if alone else both

    def count(self, feature: str) -> int:
        """Prompts that showed the feature, at least."""
        return self.past.get(feature, 0) + self.recent.get(feature, 0)

    def most(self, feature: str) -> int:
        """Prompts that may have shown the feature, at most."""
        shown = self.past.get(feature, 0) + self.recent.get(feature, 0) + self.lost
        return min(shown, self.past_prompts + len(self.window))
