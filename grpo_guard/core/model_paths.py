"""Tell model folders from hub ids, because a missing folder must not be looked up on a hub."""

import functools
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from grpo_guard.core.quoting import shown
from grpo_guard.core.redaction import host_of

logger = logging.getLogger("grpo_guard")

_CHECKPOINT: Final = re.compile(r"checkpoint-\d+/?\Z|\.(?:safetensors|bin|pt|gguf)\Z")
# Ids without an owner, from before hubs had owners; every newer id is OWNER/MODEL.
_WITHOUT_OWNER: Final = re.compile(
    r"(?:distil)?gpt2(?:-medium|-large|-xl)?|openai-gpt|ctrl|transfo-xl-wt103"
    r"|xlnet-(?:base|large)-cased|t5-(?:small|base|large|3b|11b)"
    r"|(?:distil|al)?bert-[a-z0-9-]+|(?:distil|xlm-)?roberta-[a-z]+"
)
_SECONDS: Final = 1.5
_MODELS: Final = ("model", "reader", "frozen", "tokenizer")
# Types whose models live on a server, where a model name can look like a path.
_SERVED: Final = ("openai", "remote", "vllm")
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def is_path(name: str) -> bool:
    """Whether a model name is a path: it looks like one, or its first part is a local folder."""
    first = name.partition("/")[0]
    return (
        name.startswith((".", "~", "$", "/", os.sep))
        or Path(name).is_absolute()
        or "\\" in name
        or name.count("/") > 1
        or _CHECKPOINT.search(name) is not None
        or ("/" in name and Path(first).is_dir())
    )


def missing(name: str) -> str | None:
    """Explain why no model of this name can exist; None if one does, or might on a hub.

    A model downloaded earlier is in the hub's cache and is never refused.
    """
    path = Path(name)
    if path.exists() or (not is_path(name) and _fetched(name)):
        return None
    if not is_path(name):
        return _not_on_a_hub(name)
    here = "" if path.is_absolute() else f"; looked in {Path.cwd()}"
    got = f"{name!r:.200}, and it does not exist{unexpanded(name) or here}"
    return f"expected a model's folder or an id NAME/MODEL, got {got}"


def unexpanded(name: str | os.PathLike[str]) -> str:
    """Return a hint for a path that begins with ``~`` or ``$``, which only a shell expands; "" for
    any other path."""
    start = os.fspath(name)[:1]
    return f"; {start} is not expanded, write the whole path" if start in ("~", "$") else ""


def unreached(name: str) -> str | None:
    """Explain why a model cannot be fetched from the hub; None if it is already on this machine, or
    no obstacle is known. Without this check, failed attempts would take most of a minute."""
    if Path(name).exists() or _fetched(name) or getproxies():
        return None
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        parts = urlsplit(hub)
        at = str(parts.hostname), parts.port or (80 if parts.scheme == "http" else 443)
        socket.create_connection(at, timeout=_SECONDS).close()
    except (OSError, ValueError) as error:
        # Other errors could quote the address.
        why = (error.strerror or error) if isinstance(error, OSError) else "not an HTTP address"
        return (
            f"expected a model's folder or a model fetched before, got {name!r:.200} while "
            f"{host_of(hub)} cannot be reached ({why}); write the path of a folder"
        )
    return None


def _not_on_a_hub(name: str) -> str | None:
    """Explain why no hub can have, or be asked for, a model of this name; None if one can."""
    expected = "expected a model's folder or an id NAME/MODEL"
    if "/" not in name and _WITHOUT_OWNER.fullmatch(name) is None:
        return (
            f"{expected}, got {name!r:.200}, which is not a folder in {Path.cwd()}; write the "
            "folder's path, or the id with its owner"
        )
    on = (key for key in _OFFLINE if os.environ.get(key, "").upper() in ("1", "ON", "YES", "TRUE"))
    if setting := next(on, None):
        return (
            f"expected a model's folder or a model fetched before, got {name!r:.200} while "
            f"{setting} is set; unset it, or write the path of a folder"
        )
    return None


def _fetched(name: str) -> bool:
    """Whether the model is in the hub's cache on this machine, going by the hub's folder layout."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    cache = (
        os.environ.get("HF_HUB_CACHE")
        or os.environ.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    folder = Path(os.path.expandvars(cache)).expanduser() / f"models--{name.replace('/', '--')}"
    try:
        return folder.is_dir()
    except (OSError, ValueError):  # not a possible file name
        return False


def missing_models(node: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield (place, problem) for each model in a guard file that cannot be found."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield from missing_models(item, f"{where}[{i}]")
    elif isinstance(node, Mapping) and node.get("type") not in _SERVED:
        for key, value in node.items():
            place = f"{where}.{key}" if where else str(key)
            if key in _MODELS and isinstance(value, str) and value:
                if (problem := missing(value)) is not None:
                    yield place, problem
            elif isinstance(value, list) or (
                # Other backends have no weights here; a misspelt type is refused later.
                isinstance(value, Mapping)
                and (key != "backend" or value.get("type") == "transformers")
            ):
                yield from missing_models(value, place)


@functools.cache
def warn_unpinned(path_or_id: str, revision: str | None) -> None:
    """Warn once that a model's owner on the hub can replace it at any time; folders are exempt.

    Tags and branches can be moved; only a commit hash is fixed.
    """
    if not re.fullmatch("[0-9a-f]{40}", revision or "") and not Path(path_or_id).exists():
        got = f"revision {shown(revision)} is not the 40 digits of a commit" if revision else ""
        logger.warning(
            "model %r: %s, so its owner can change the weights at any time; give a local "
            "folder, or set revision, in a guard file or in Python, to the 40 digits of a commit",
            path_or_id,
            got or "no pinned revision",
        )
