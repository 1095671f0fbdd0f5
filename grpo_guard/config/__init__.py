"""Build a guard from a preset, or from a file that names its verifiers and options.

The names here are loaded only when used, because presets need none of the file-reading code.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_guard.config.file import GuardConfig
    from grpo_guard.config.tree import WRAPPERS, build_verifier, unwrapped, verifier_options
    from grpo_guard.core.options import ConfigError

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
        module = "file" if name in ("ConfigError", "GuardConfig") else "tree"
        return getattr(importlib.import_module(f"grpo_guard.config.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
