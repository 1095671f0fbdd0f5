"""``grpo-guard``: assembles the commands.

The eval suite is a layer above the command line, so its modules are imported by name.
"""

import importlib
import logging
import os
from typing import Annotated

import typer

from grpo_guard.cli.calibrate import calibrate
from grpo_guard.cli.config import app as _config
from grpo_guard.cli.config import verifiers
from grpo_guard.cli.doctor import doctor
from grpo_guard.cli.identity import app as _identity
from grpo_guard.cli.init import check, init
from grpo_guard.cli.judge import app as _judge
from grpo_guard.cli.ledger import app as _ledger
from grpo_guard.cli.metrics import metrics
from grpo_guard.cli.serve import serve
from grpo_guard.cli.spot_check import app as _spot_check
from grpo_guard.cli.terminal import Commands, echo
from grpo_guard.cli.verify import verify
from grpo_guard.cli.view import view
from grpo_guard.core.quoting import PrintableFormatter
from grpo_guard.core.version import __version__

app = typer.Typer(
    name="grpo-guard",
    cls=Commands,
    help="Verifies completions before they earn a GRPO reward.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with local variables would print completions
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    # OpenMP reads this variable when a command loads torch later. Threads that spin while waiting
    # are many times slower if another process, such as the trainer, is busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if logging.lastResort is not None:  # shows warnings if logging is not set up
        logging.lastResort.setFormatter(PrintableFormatter())


_measure = importlib.import_module("grpo_guard.evals.cli")
_eval = _measure.app
_eval.command("swarm")(importlib.import_module("grpo_guard.evals.cli_swarm").swarm)

app.command()(_measure.demo)
app.command(context_settings=_measure.ANYTHING)(_measure.bench)
app.command()(init)
app.command()(verify)
app.command()(view)
app.command()(calibrate)
app.command()(serve)
app.command()(verifiers)
app.command()(metrics)
app.command()(doctor)
_config.command()(check)
app.add_typer(_config, name="config")
app.add_typer(_ledger, name="ledger")
app.add_typer(_identity, name="identity")
app.add_typer(_spot_check, name="spot-check")
_judge.command("probe")(importlib.import_module("grpo_guard.evals.judge_probe.cli").probe)
app.add_typer(_judge, name="judge")
app.add_typer(_eval, name="eval", help="Measure detection and training outcomes.")
