"""What each text shows by itself: read in this process, or by the workers that read for rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from grpo_guard.completion import Completion
from grpo_guard.nodes.recurrence.features import MOST_FEATURES, Reader
from grpo_guard.nodes.recurrence.words import words_of
from grpo_guard.turns import as_said
from grpo_guard.verdict import Cause, Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Shown(Verdict):
    """What a completion shows. It decides nothing, and goes the way that readings of rules go.

    Args:
        features: Sorted, so that sets of them are the same in each process. None: it was not read,
            or has so many that those to be counted are drawn, which is done where they are counted.
        by: `Reader.mark` of who read it.
    """

    features: tuple[str, ...] | None = None
    by: bytes = b""

    def taking(self, seconds: float) -> Verdict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _shown, (self.verifier, self.features, self.by)


def read_each(
    reader: Reader, batch: Sequence[Completion], most: int, name: str
) -> Iterator[Verdict]:
    """A `Shown` of each: of its author's own turns, and what its prompt says is excused.

    Args:
        reader: Its vocabulary decides.
        batch: Any number.
        most: Characters of the longest text that is read.
        name: Of the verifier.
    """
    words = cache(lambda prompt: frozenset(words_of(prompt)))
    mark = reader.mark  # looking it up compares whole vocabularies if there are equal ones
    for completion in batch:
        said = as_said(completion)
        text = (said.completion if said else completion).text
        found = (
            reader.read(text, words(completion.trusted_prompt_text)) if len(text) <= most else None
        )
        few = found is not None and len(found) < MOST_FEATURES
        yield _shown(name, tuple(sorted(found)) if found is not None and few else None, mark)


def _shown(name: str, features: tuple[str, ...] | None, by: bytes) -> Shown:
    return Shown(Outcome.ACCEPT, Cause.JUDGED, name, features=features, by=by)
