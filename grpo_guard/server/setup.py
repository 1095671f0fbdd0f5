"""Build the application from the command line's settings, in one process or in several."""

import json
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from starlette.routing import Router

from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.core.parent_process import when_parent_ends
from grpo_guard.core.quoting import log_handler
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.server.app import create_app
from grpo_guard.server.audit import Audit, own_name
from grpo_guard.server.limits import Limits
from grpo_guard.server.metrics import Metrics
from grpo_guard.server.rewards import Rewards, load_reward
from grpo_guard.server.run import prepare

TOKEN: Final = "GRPO_GUARD_TOKEN"
_SETTINGS: Final = "GRPO_GUARD_SERVE"
REFUSED: Final = "refused"
"""Name of the file, in the counts folder, that says why no worker could start."""
_NOTED: Final = "noted"
"""Name of the file, in the counts folder, whose maker prints the notes for all workers."""
_NOT_STARTED: Final = 3
"""The exit status after which uvicorn does not replace a worker."""


class SetupError(ValueError):
    """The server cannot be built as requested; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings from which a server is built: the guard file's path; the reward function, as
    ``FILE.py:NAME`` or ``pkg.module:NAME``; fields of `Limits`; the folder of the log of
    rejections; and the folder in which several workers add up their counts, None if one process
    serves."""

    config: str
    reward: str | None
    limits: dict[str, Any]
    audit: str | None
    counts: str | None = None


def build(settings: Settings) -> tuple[Router, list[str]]:
    """Build the application, and notes for the operator; raises SetupError if this fails."""
    try:
        function = None if settings.reward is None else load_reward(settings.reward)
        guard = GuardConfig.from_yaml(Path(settings.config)).build()
        rewards = Rewards(guard, function)
    except ConfigError as error:
        raise SetupError(str(error)) from None
    except (ValueError, FrameworkError) as error:
        raise SetupError(f"--reward: {error}") from None
    notes = list(rewards.notes)
    if guard.identity is not None and TOKEN not in os.environ:
        notes.append(
            "warning: identity: any client can submit signed work of a node before the trainer, "
            f"whose own request is then refused as replayed; set {TOKEN}"
        )
    app = create_app(
        guard,
        rewards=rewards,
        limits=Limits(**settings.limits),
        token=os.environ.get(TOKEN, "").strip() or None,
        audit=_audit(settings),
        metrics=Metrics(None if settings.counts is None else Path(settings.counts)),
    )
    return app, notes


def _audit(settings: Settings) -> Audit | None:
    if settings.audit is None:
        return None
    folder = Path(settings.audit)
    try:
        # Two processes that rotate one file would lose lines.
        return Audit(folder, "rejections.jsonl" if settings.counts is None else own_name(folder))
    except OSError as error:
        raise SetupError(
            f"--audit: expected a folder that can be written, got {settings.audit}: "
            f"{error.strerror}"
        ) from None


def hand_over(settings: Settings) -> str:
    """Leave the settings to processes started from here; return the import path of `worker`."""
    os.environ[_SETTINGS] = json.dumps(asdict(settings))
    return f"{__name__}:worker"


def worker() -> Router:
    """Build the application in a worker process, which ends with the process that started it."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_handler()])
    prepare()
    # Without its parent, it would hold the port, and its old settings, for ever.
    when_parent_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))
    settings = Settings(**json.loads(os.environ[_SETTINGS]))
    try:
        app, notes = build(settings)
    except SetupError as error:
        (Path(settings.counts or ".") / REFUSED).write_text(str(error), encoding="utf-8")
        sys.exit(_NOT_STARTED)
    with suppress(FileExistsError), (Path(settings.counts or ".") / _NOTED).open("x"):
        for note in notes:
            print(note, file=sys.stderr, flush=True)
    return app
