"""`NodeStore`: the one place that holds everything remembered about nodes."""

import atexit
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from grpo_guard.core.files import obstacle
from grpo_guard.core.model_paths import unexpanded
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.rounds import MAX_NODES

FILE = "nodes.sqlite"


class NodeStore:
    """Everything remembered about nodes, in one SQLite file that several processes can share.

    The ledger's evidence and counts are rows, so processes add to the same counts. Every other
    memory is a single state: in one transaction, it is loaded before a batch, if another process
    has written it since, and written back afterwards (`Memory`). Raises ValueError if ``folder`` is
    not a folder and cannot be created, or is not writable.

    Args:
        folder: Folder of the file ``nodes.sqlite``, created if missing; None for a temporary folder
            that is removed when the process ends.
        max_nodes: Maximum number of names that the store's ledger keeps; see `EvidenceLedger`.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, max_nodes: int = MAX_NODES
    ) -> None:
        if not isinstance(folder, str | os.PathLike | None):
            raise ValueError(f"state: expected a folder's path, got {folder!r:.80}")
        if folder is not None and not os.fspath(folder):
            raise ValueError('state: expected a folder\'s path, got ""; write "." for this folder')
        self.path = (_temporary() if folder is None else _made(Path(folder))) / FILE
        self.lasting = folder is not None
        self.max_nodes = max_nodes
        self._claimed = Counter[str]()

    def ledger(self, **options: Any) -> EvidenceLedger:
        """Open the ledger in this store's file, with the options of `EvidenceLedger`. Raises
        LedgerError if the file is not a ledger."""
        return EvidenceLedger(self.path, **{"max_nodes": self.max_nodes, **options})

    def claim(self, name: str) -> str:
        """Claim a unique name for a memory: a second "recurrence" becomes "recurrence_2".

        The name is the same in every process that builds the same guard.
        """
        first = book_name(name)
        self._claimed[first] += 1
        count = self._claimed[first]
        return first if count == 1 else self.claim(f"{first}_{count}")


def book_name(name: str) -> str:
    """Convert a verifier's name to the form used for names in a store: lower-case letters, digits
    and ``_``."""
    return re.sub("[^a-z0-9_]", "_", name.lower()).lstrip("_")[:32] or "rule"


def in_folder(path: Path) -> Path:
    """Return the store's file if ``path`` is a folder, otherwise ``path`` itself."""
    return path / FILE if path.is_dir() else path


def require_folder(folder: Path) -> None:
    """Raise ValueError unless a store can be kept in this folder, which need not exist yet."""
    hint = unexpanded(folder)
    if hint and not folder.is_dir():
        raise ValueError(f"state: expected a folder's path, got {str(folder)!r}{hint}")
    try:
        found = obstacle(folder)
    except OSError as error:
        raise _not_made(folder, error.strerror) from None
    if found is not None:
        raise _not_made(folder, found[1])
    # Fail here rather than at the first batch, where all completions would get abstentions.
    if folder.exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(
            f"state: expected a folder that this process may read and write, got {str(folder)!r}; "
            "change its owner or its rights, or name another"
        )


def _made(folder: Path) -> Path:
    require_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(folder, error.strerror) from None
    return folder


def _not_made(folder: Path, why: str | None) -> ValueError:
    return ValueError(
        f"state: expected a folder that exists or can be made, got {str(folder)!r} ({why})"
    )


def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="grpo-guard-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not in a fork of the process that made it
        shutil.rmtree(folder, ignore_errors=True)
