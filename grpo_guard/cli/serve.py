"""The command ``grpo-guard serve``."""

import importlib.util
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from grpo_guard.cli.terminal import echo, exit_with
from grpo_guard.core.quoting import log_handler

if TYPE_CHECKING:
    from grpo_guard.server.setup import Settings

TOKEN = "GRPO_GUARD_TOKEN"


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="The guard, as YAML.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8080,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Your reward function, or pkg.module:NAME. Default: 1 if accepted, else 0.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which the guard abstains.")
    ] = 120.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Batches judged at once.")] = 8,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more get 429.")] = 1024,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Completions of several requests judged together.")
    ] = 64,
    batch_wait_ms: Annotated[
        float, typer.Option(min=0.1, help="How long a request waits for the running batch.")
    ] = 500.0,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest request, in MiB.")] = 4,
    audit: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for a JSONL log of rejections.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; one per core is enough.")] = 1,
) -> None:
    """Serve OpenRLHF's /get_reward and /v1/verify over HTTP.

    If GRPO_GUARD_TOKEN is set, every client must send that token. Exit 2 on
    bad input, 1 if the server cannot listen on the address.
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        exit_with(f"serve needs {' and '.join(missing)}: pip install 'grpo-guard[server]'")
    _token()  # an empty one is refused before the guard is built
    from grpo_guard.server.setup import Settings

    for name, value in (("--timeout", timeout), ("--batch-wait-ms", batch_wait_ms)):
        if not value < float("inf"):
            exit_with(f"{name}: expected a number, got {value}")
    limits = {
        "seconds": timeout,
        "running": concurrency,
        "waiting": queue,
        "batch_size": batch_size,
        "batch_wait": batch_wait_ms / 1000,
        "body_bytes": max_body_mb * 1024 * 1024,
    }
    settings = Settings(str(config), reward, limits, None if audit is None else str(audit))
    logging.basicConfig(level=logging.WARNING, handlers=[log_handler()])
    if workers == 1:
        _serve_here(settings, host, port)
    else:
        _serve_in_workers(settings, host, port, workers)


def _serve_here(settings: "Settings", host: str, port: int) -> None:
    from grpo_guard.server import run
    from grpo_guard.server.setup import SetupError, build

    try:
        app, notes = build(settings)
    except SetupError as error:
        exit_with(str(error))
    _announce(host)
    for note in notes:
        echo(note, err=True)
    if not run.listen(app, host, port):
        _refuse_taken(host, port)


def _serve_in_workers(settings: "Settings", host: str, port: int, workers: int) -> None:
    import tempfile
    from dataclasses import replace

    from grpo_guard.config import ConfigError, GuardConfig
    from grpo_guard.server import run
    from grpo_guard.server.setup import REFUSED, hand_over

    try:
        guard_config = GuardConfig.from_yaml(Path(settings.config))
    except ConfigError as error:
        exit_with(str(error))
    if guard_config.identity is not None:
        exit_with(
            "--workers: expected 1 with identity, which remembers used envelopes in one process, "
            f"got {workers}: each would accept the same envelope once"
        )
    _announce(host)
    if guard_config.state is None:
        echo(
            "warning: --workers: each worker keeps its own state about nodes; set state: FOLDER in "
            f"{settings.config} to share it",
            err=True,
        )
    with tempfile.TemporaryDirectory() as counts:
        app = hand_over(replace(settings, counts=counts))
        listened = run.listen_in_workers(app, host, port, workers)
        refused = Path(counts) / REFUSED
        if refused.exists():
            exit_with(refused.read_text(encoding="utf-8"))
        if not listened:
            _refuse_taken(host, port)


def _announce(host: str) -> None:
    """Name the paths, and warn if strangers can use them. Called when the guard file is right, so
    that an error in it comes alone."""
    from grpo_guard.server.access import is_loopback
    from grpo_guard.server.app import PATHS

    if _token() is None and not is_loopback(host):
        echo(
            f"warning: {host} can be reached from other machines, and anyone there may send "
            f"requests; set {TOKEN}",
            err=True,
        )
    echo(PATHS, err=True)


def _refuse_taken(host: str, port: int) -> NoReturn:
    exit_with(
        f"--port: expected a free one on {host}, got {port}, on which the server cannot listen; "
        "--port N takes another, 0 any free one",
        1,
    )


def _token() -> str | None:
    token = os.environ.get(TOKEN)
    if token is None:
        return None
    # An unset variable in a deployment template becomes empty, which must not disable the check.
    return token.strip() or exit_with(
        f"{TOKEN}: expected a token, got an empty one; unset it to serve without"
    )
