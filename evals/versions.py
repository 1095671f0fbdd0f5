"""What a result was measured with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the packages that numbers depend on."""
    from grpo_guard import __version__

    found = {"python": platform.python_version(), "grpo_guard": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"machine": platform.machine()}
