"""What a check says about one place in a program, and how much it weighs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """Whether a note decides."""

    HARMLESS = 0  # honest beginners do it: an unused variable, an unused standard import
    DECORATION = 1  # odd, but honest by itself; two different kinds together reject
    REJECTS = 2


@dataclass(frozen=True, slots=True)
class Note:
    """One observation; ``start`` and ``end`` are characters of the block it was made in.

    ``subject`` is the name that the note calls unused; a use in another block refutes it.
    """

    kind: str
    message: str
    start: int
    end: int
    weight: Weight = Weight.REJECTS
    subject: str = ""
