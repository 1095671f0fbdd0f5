"""Which releases of OpenRLHF the adapters are for."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

from grpo_guard.framework import FrameworkError

# Before this release `execute` has no images, and agents return through a queue or without them.
OLDEST: Final = (0, 10)


def require_openrlhf() -> None:
    """Raises FrameworkError where openrlhf is too old; where it is not installed nothing is said:
    the server behind ``--reward.remote_url`` runs without it."""
    try:
        version = importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise FrameworkError(
            f"openrlhf {version} calls agents in other ways; guarded runs need "
            f"openrlhf >= {needed} (tested with 0.11.2)."
        )
