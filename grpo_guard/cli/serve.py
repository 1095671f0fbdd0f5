"""``grpo-guard serve``."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

TOKEN = "GRPO_GUARD_TOKEN"


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="The guard, as YAML.")],
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free one.")] = 8080,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Your reward function, or pkg.module:NAME. Without: 1 accepted, 0 rejected.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request is answered: abstain.")
    ] = 120.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests worked on at once.")] = 8,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more get 503.")] = 1024,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest request, in MiB.")] = 4,
) -> None:
    """Answer OpenRLHF's /get_reward and /v1/verify over HTTP.

    A token in GRPO_GUARD_TOKEN is asked of every client. Exit 2 on bad input, 1 if the address is
    taken.
    """
    _require_server()
    token = _token()
    from grpo_guard.config import ConfigError, GuardConfig
    from grpo_guard.framework import FrameworkError
    from grpo_guard.server.access import is_loopback
    from grpo_guard.server.app import create_app
    from grpo_guard.server.limits import Limits
    from grpo_guard.server.rewards import Rewards, load_reward
    from grpo_guard.server.run import listen

    if not timeout < float("inf"):
        _refuse(f"--timeout: expected a number of seconds, got {timeout}")
    limits = Limits(timeout, concurrency, queue, max_body_mb * 1024 * 1024)
    try:
        function = None if reward is None else load_reward(reward)
        guard = GuardConfig.from_yaml(config).build()
        rewards = Rewards(guard, function)
    except ConfigError as error:
        _refuse(str(error))
    except (ValueError, FrameworkError) as error:
        _refuse(f"--reward: {error}")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for note in rewards.notes:
        typer.echo(note, err=True)
    if token is None and not is_loopback(host):
        typer.echo(
            f"warning: {host} can be reached from other machines, and anybody there may ask; "
            f"set {TOKEN}",
            err=True,
        )
    if token is None and guard.identity is not None:
        typer.echo(
            "warning: identity: whoever may ask can hand in what a node signed before the trainer "
            f"does, whose own request is then refused as replayed; set {TOKEN}",
            err=True,
        )
    app = create_app(guard, rewards=rewards, limits=limits, token=token)
    if not listen(app, host, port):
        raise typer.Exit(1)


def _require_server() -> None:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        _refuse(f"serve needs {' and '.join(missing)}: pip install 'grpo-guard[server]'")


def _token() -> str | None:
    token = os.environ.get(TOKEN)
    if token is None:
        return None
    # An unset variable in a deployment's template comes out empty: that must not open the door.
    return token.strip() or _refuse(
        f"{TOKEN}: expected a token, got an empty one; unset it to serve without"
    )


def _refuse(problem: str) -> NoReturn:
    typer.echo(problem, err=True)
    raise typer.Exit(2)
