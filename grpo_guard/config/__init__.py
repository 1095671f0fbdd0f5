"""Build a guard from a preset, or from a file that names its verifiers and options.

The names here come from `grpo_guard.config.file`, which is loaded only when one of them is used,
because presets need none of the file-reading code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_guard.config.file import (
        WRAPPERS,
        ConfigError,
        GuardConfig,
        build_verifier,
        unwrapped,
        verifier_options,
    )

__all__ = [
    "WRAPPERS",
    "ConfigError",
    "GuardConfig",
    "build_verifier",
    "unwrapped",
    "verifier_options",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("grpo_guard.config.file"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
