"""Extract features from texts, either in this process or in the workers that read for rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from grpo_guard.content.recurrence.features import MOST_FEATURES, Reader, excused_by
from grpo_guard.core.completion import Completion
from grpo_guard.core.turns import own_text
from grpo_guard.core.verdict import Cause, Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Shown(Verdict):
    """A completion's features, packaged as a verdict so that workers can return them.

    The verdict itself decides nothing.

    Args:
        features: Sorted, so that sets built from them are the same in every process. None if the
            text was not read, or if it has so many features that the counting process must sample
            them.
        by: `Reader.mark` of the reader that extracted the features.
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
    """Yield one `Shown` per completion, read from its author's turns, with prompt words excused.

    Args:
        reader: Extracts the features.
        batch: Any number of completions.
        most: Maximum length, in characters, of a text that is read.
        name: Name of the verifier.
    """
    words = cache(excused_by)
    mark = reader.mark  # only once: the cache behind it compares whole vocabularies if equal
    for completion in batch:
        spoken = own_text(completion)
        text = (spoken.completion if spoken else completion).text
        found = (
            reader.read(text, words(completion.trusted_prompt_text)) if len(text) <= most else None
        )
        few = found is not None and len(found) < MOST_FEATURES
        yield _shown(name, tuple(sorted(found)) if found is not None and few else None, mark)


def _shown(name: str, features: tuple[str, ...] | None, by: bytes) -> Shown:
    return Shown(Outcome.ACCEPT, Cause.JUDGED, name, features=features, by=by)
