"""Build a guard file's guard without creating or changing the files of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_guard.config.file import GuardConfig
from grpo_guard.core.options import ConfigError
from grpo_guard.guard import Guard
from grpo_guard.guard.argument_checks import require_writable
from grpo_guard.nodes.schema import LedgerError, require_usable
from grpo_guard.nodes.store import FILE, require_folder


@contextmanager
def tried(config: GuardConfig) -> Iterator[Guard]:
    """Build the guard of a file, with its state, ledger and log in a temporary folder.

    The paths that the file names are checked, but nothing is created or changed there.

    Raises:
        ConfigError: as for `GuardConfig.build`.
    """
    ledger = config.ledger
    with TemporaryDirectory(prefix="grpo-guard-") as folder:
        changed: dict[str, object] = {}
        with config.naming_errors():
            if config.state:
                _require("", Path(config.state) / FILE, folder=True)
                changed["state"] = folder
            if ledger is not None and ledger.path is not None:
                _require("ledger: ", Path(ledger.path), folder=False)
                own = {"path": str(Path(folder) / FILE)}
                changed["ledger"] = ledger.model_copy(update=own)
            if config.log is not None:
                _require_log(Path(config.log))
                changed["log"] = str(Path(folder) / "verdicts.jsonl")
        yield config.model_copy(update=changed).build()


def _require(place: str, path: Path, *, folder: bool) -> None:
    try:
        if folder:
            require_folder(path.parent)
        if not folder or path.parent.is_dir():
            require_usable(path)
    except (ValueError, LedgerError) as error:
        raise ConfigError(f"{place}{error}") from None


def _require_log(path: Path) -> None:
    try:
        require_writable(path, make=False)
    except ValueError as error:
        raise ConfigError(str(error)) from None
