"""Access to the `studies` package, which is part of a checkout but not of the wheel."""

import importlib.util
from collections.abc import Collection
from types import ModuleType
from typing import Final

from grpo_guard.core.registry import UnknownNameError, choose

_STUDIES: Final = f"{__package__}.studies"


def study(name: str) -> ModuleType | None:
    """Import a module from `studies`; None if the package was installed without the studies."""
    return importlib.import_module(f"{_STUDIES}.{name}") if _is_here() else None


def known(names: Collection[str], name: str) -> str:
    """Return ``name`` as `choose` does; the error mentions a checkout if studies are missing."""
    try:
        return choose(names, name)
    except UnknownNameError as error:
        more = "" if _is_here() else "; a clone of the repository has more names"
        raise UnknownNameError(f"{error}{more}") from None


def _is_here() -> bool:
    return importlib.util.find_spec(_STUDIES) is not None
