"""Access to `studies`, which a checkout has and the wheel leaves out."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from types import ModuleType
from typing import Final

from grpo_guard.core.registry import UnknownNameError, choose

_STUDIES: Final = f"{__package__}.studies"


def study(name: str) -> ModuleType | None:
    """Import a module of `studies`; None if the package was installed without them."""
    return importlib.import_module(f"{_STUDIES}.{name}") if _is_here() else None


def known(names: Collection[str], name: str) -> str:
    """Return ``name`` as `choose` does; without a checkout, the error adds that one knows more."""
    try:
        return choose(names, name)
    except UnknownNameError as error:
        more = "" if _is_here() else "; a checkout of the repository knows more"
        raise UnknownNameError(f"{error}{more}") from None


def _is_here() -> bool:
    return importlib.util.find_spec(_STUDIES) is not None
