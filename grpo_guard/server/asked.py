"""What a client asks to have verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_guard.core.completion import Completion


@dataclass(frozen=True, slots=True)
class Asked:
    """The completions of a request, or of a part of a stream.

    Args:
        completions: The completions, in order.
        ids: The sender's own id of each completion; None for those without one.
        first: Index of the first completion in the stream; None if the reply is a single list.
    """

    completions: list[Completion]
    ids: Sequence[str | int | None]
    first: int | None = None

    def __len__(self) -> int:
        return len(self.completions)

    def part(self, completions: list[Completion], first: int) -> Asked:
        """Return the part of a stream that begins at index ``first``."""
        return Asked(completions, self.ids[first : first + len(completions)], first)
