"""Which releases of TRL the adapter is for."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

from grpo_guard.framework import FrameworkError

# Before this release a completion without any reward counted as reward 0 in its group's baseline.
OLDEST: Final = (1, 6)


def require_trl() -> None:
    """Raises FrameworkError where the installed trl is too old; without trl nothing is said."""
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise FrameworkError(
            f"trl {version} counts a completion that is left out as reward 0 in its group's "
            f"baseline, and calls the guard in other ways; guarded runs need trl >= {needed}."
        )
