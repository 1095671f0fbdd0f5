"""The version of this package, for whatever is below `grpo_guard` itself."""

from __future__ import annotations

__version__ = "0.3.0"
