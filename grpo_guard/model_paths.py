"""Tell folders from hub ids, because a missing folder must not be looked up on a hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_CHECKPOINT: Final = re.compile(r"checkpoint-\d+/?\Z|\.(?:safetensors|bin|pt|gguf)\Z")
_MODELS: Final = ("model", "reader", "frozen", "tokenizer")
# These types take a model name that a server knows, which may look like a path on the server.
_SERVED: Final = ("openai", "remote", "vllm")


def is_path(name: str) -> bool:
    """Whether a name is a path: it looks like one, or its first folder exists here."""
    first = name.partition("/")[0]
    return (
        name.startswith((".", "~", "/", os.sep))
        or Path(name).is_absolute()
        or "\\" in name
        or name.count("/") > 1
        or _CHECKPOINT.search(name) is not None
        or ("/" in name and Path(first).is_dir())
    )


def missing(name: str) -> str | None:
    """Why no model can exist under this name; None if it exists here or may exist on a hub."""
    path = Path(name)
    if path.exists() or not is_path(name):
        return None
    home = "; ~ is not expanded here, write the whole path" if name.startswith("~") else ""
    here = "" if path.is_absolute() else f"; looked in {Path.cwd()}"
    got = f"{name!r:.200}, and it does not exist{home or here}"
    return f"expected a model's folder or an id NAME/MODEL, got {got}"


def missing_models(node: Any, where: str) -> Iterator[tuple[str, str]]:
    """(place, problem) for each model in a guard file that is a path that does not exist."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from missing_models(item, f"{where}[{i}]")
    elif isinstance(node, Mapping) and node.get("type") not in _SERVED:
        for key, value in node.items():
            place = f"{where}.{key}" if where else str(key)
            if key in _MODELS and isinstance(value, str) and value:
                problem = missing(value)
                if problem is not None:
                    yield place, problem
            elif isinstance(value, Mapping | list):
                yield from missing_models(value, place)
