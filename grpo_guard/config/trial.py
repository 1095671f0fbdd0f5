"""Build a guard file's guard without creating or changing a run's files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_guard.config.file import GuardConfig
from grpo_guard.core.options import placing
from grpo_guard.guard import Guard
from grpo_guard.guard.argument_checks import require_writable
from grpo_guard.nodes.schema import LedgerError, require_usable
from grpo_guard.nodes.store import FILE, require_folder


@contextmanager
def tried(config: GuardConfig) -> Iterator[Guard]:
    """Build the guard of a guard file, with its state, ledger and log in a temporary folder. Paths
    named in the guard file are checked, but nothing is created or changed there. Raises ConfigError
    as `GuardConfig.build` does."""
    ledger = config.ledger
    with TemporaryDirectory(prefix="grpo-guard-") as folder:
        changed: dict[str, object] = {}
        with config.naming_errors():
            if config.state:
                with placing("", ValueError, LedgerError):
                    require_folder(Path(config.state))
                    if Path(config.state).is_dir():
                        require_usable(Path(config.state) / FILE)
                changed["state"] = folder
            if ledger is not None and ledger.path is not None:
                with placing("ledger: ", ValueError, LedgerError):
                    require_usable(Path(ledger.path))
                own = {"path": str(Path(folder) / FILE)}
                changed["ledger"] = ledger.model_copy(update=own)
            if config.log is not None:
                with placing("", ValueError):
                    require_writable(Path(config.log), make=False)
                changed["log"] = str(Path(folder) / "verdicts.jsonl")
        yield config.model_copy(update=changed).build()
