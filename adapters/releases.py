"""The trainer releases that the adapters support."""

import importlib.metadata
import re
from typing import Final

from grpo_guard.guard.framework import FrameworkError

_OLDEST: Final = {
    "trl": (
        (1, 6),
        "counts a completion that is left out as reward 0 in its group's baseline, and calls the "
        "guard in other ways",
    ),
    "verl": (
        (0, 9, 1),
        "has no reward workers of this kind and reads its reward function elsewhere in the "
        "configuration",
    ),
    # In earlier releases, `execute` has no images, and agents return with or without a queue.
    "openrlhf": ((0, 10), "calls agents in other ways"),
}


def require_release(trainer: str) -> None:
    """Raise FrameworkError if the installed trainer is too old; a trainer that is not installed is
    accepted, because code that serves a trainer can run on a machine without it."""
    oldest, trouble = _OLDEST[trainer]
    try:
        version = importlib.metadata.version(trainer)
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = re.match(r"\d+(\.\d+)*", version)
    if numbers and tuple(map(int, numbers[0].split(".")))[: len(oldest)] < oldest:
        needed = ".".join(map(str, oldest))
        raise FrameworkError(
            f"{trainer} {version} {trouble}; guarded runs need {trainer} >= {needed}."
        )
